//! The open contexts, and which of them have been touched since somebody last looked.

use std::collections::BTreeSet;

use contract::ContextId;

use crate::context::Context;
use crate::index::Entry;
use crate::order::ById;

/// Contexts by id. Whoever may change one notes it as touched, so that what is kept about contexts
/// elsewhere ([`crate::index::Index`]) can never miss a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contexts {
    open: ById<Context>,
    ids: BTreeSet<ContextId>,
    /// May name one more than once.
    touched: Vec<ContextId>,
    /// Those of which a step changed where their next one stands, and perhaps nothing else.
    stepped: Vec<ContextId>,
    /// What the index still holds of removed ones.
    gone: Vec<(ContextId, Entry)>,
}

impl Contexts {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn contains_key(&self, id: &ContextId) -> bool {
        self.open.contains_key(id)
    }

    pub(crate) fn get(&self, id: &ContextId) -> Option<&Context> {
        self.open.get(id)
    }

    /// In the order of their ids.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Context> {
        self.ids.iter().filter_map(|id| self.open.get(id))
    }

    pub(crate) fn get_mut(&mut self, id: &ContextId) -> Option<&mut Context> {
        let context = self.open.get_mut(id)?;
        if self.touched.last() != Some(id) {
            self.touched.push(*id);
        }
        Some(context)
    }

    /// As [`Contexts::get_mut`], for changes that nothing kept elsewhere depends on, or that are noted by
    /// [`Contexts::touch`].
    pub(crate) fn mark(&mut self, id: &ContextId) -> Option<&mut Context> {
        self.open.get_mut(id)
    }

    pub(crate) fn insert(&mut self, id: ContextId, context: Context) {
        self.touch(id);
        self.ids.insert(id);
        self.open.insert(id, context);
    }

    pub(crate) fn remove(&mut self, id: &ContextId) {
        self.touch(*id);
        self.ids.remove(id);
        self.gone.extend(self.open.remove(id).map(|context| (*id, context.entry)));
    }

    /// Notes that a context is to be looked at, though nothing but time has changed it.
    pub(crate) fn touch(&mut self, id: ContextId) {
        self.touched.push(id);
    }

    /// Notes that a step has brought a context to the next of its chunks.
    pub(crate) fn step(&mut self, id: ContextId) {
        self.stepped.push(id);
    }

    /// Appends what has been touched, each once and in order.
    pub(crate) fn take_touched(&mut self, into: &mut Vec<ContextId>) {
        self.touched.sort_unstable();
        self.touched.dedup();
        into.append(&mut self.touched);
    }

    pub(crate) fn take_stepped(&mut self) -> Vec<ContextId> {
        std::mem::take(&mut self.stepped)
    }

    pub(crate) fn take_gone(&mut self) -> Vec<(ContextId, Entry)> {
        std::mem::take(&mut self.gone)
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.touched.is_empty() && self.stepped.is_empty()
    }
}
