//! What is asked of all contexts at once, kept in order, so that an event costs what it changes and not
//! what is open.
//!
//! An [`Entry`] says what one context is to the lanes now; it follows from the context, the profile and the
//! moment alone. It is made anew when its context was touched, and when time alone changes it: each such
//! change has its tick in one of the agendas. What depends on the pace or on costs, which change with every
//! launch, is kept by deadline in groups that share the rest, so that one comparison a group decides.

use std::collections::{BTreeMap, BTreeSet};

use contract::{ContextId, Span, Tick};

use crate::beat::Beat;
use crate::context::Context;
use crate::order::{ById, Groups, Tally};
use crate::slack::{CutKey, Head, SlackKey, View};

/// Ticks at which something of a context falls due.
pub(crate) type Agenda = BTreeSet<(Tick, ContextId)>;

/// Heads that may be dispatched, by deadline.
type Heads = BTreeMap<(Tick, ContextId), Head>;

type Step = (i64, SlackKey, Tick);
type Cut = (CutKey, Tick);

/// One context as the lanes see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// It wants a step: positions that step covers, less the steps launched so far, and what its slack follows from.
    step: Option<Step>,
    /// It has frames for less than a chunk: what the time to cut it follows from.
    cut: Option<Cut>,
    rest: Rest,
}

/// What most rows leave as it is, while every one changes the two above.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rest {
    head: Option<Head>,
    /// Its head may be dispatched.
    free: bool,
    /// Its head hangs on the pace or on costs, and is looked at again each time.
    restless: bool,
    /// When its head turns urgent.
    turns: Option<Tick>,
    idle: Option<Tick>,
    wait: Option<Tick>,
    /// When its lead has run down.
    lead: Option<Tick>,
    /// A prefill of it is the next thing, and, beside these, an encode.
    waiting: bool,
    prefilling: bool,
    /// Prompt positions, while its first prefill waits.
    newcomer: Option<u32>,
}

/// Every context that has not finished, by what is asked of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    entries: ById<Entry>,
    pub(crate) stepping: BTreeSet<ContextId>,
    positions: Tally,
    slack: Groups<SlackKey>,
    cuts: Groups<CutKey>,
    /// How many contexts want a step and have no chunk ready.
    pub(crate) joining: usize,
    /// Contexts whose heads may be dispatched, and how many heads there are.
    pub(crate) ready: BTreeSet<ContextId>,
    pub(crate) heads: usize,
    urgent: Heads,
    background: Heads,
    restless: BTreeSet<ContextId>,
    pub(crate) turns: Agenda,
    pub(crate) idles: Agenda,
    pub(crate) waits: Agenda,
    pub(crate) leads: Agenda,
    pub(crate) waiting: BTreeSet<ContextId>,
    pub(crate) prefilling: BTreeSet<ContextId>,
    newcomers: BTreeMap<ContextId, u32>,
}

impl Entry {
    /// `None` once the context has finished.
    pub(crate) fn of(context: &Context, view: &View<'_>) -> Option<Self> {
        if context.finished {
            return None;
        }
        let (head, cut) = view.next_chunk(context);
        let slack = if view.wants_step(context) { view.slack_key(context) } else { None };
        let step = context.active().zip(slack);
        let waiting = context.waiting();
        Some(Self {
            step: step.map(|(segment, (key, deadline))| {
                let positions = i64::from(segment.positions_after(segment.launched));
                (positions - view.beat.launched, key, deadline)
            }),
            cut,
            rest: Rest {
                free: view.may_dispatch(context),
                restless: head.is_some() && (context.forced_urgent || head.is_some_and(|head| head.cut)),
                turns: head.filter(|head| !head.urgent).map(|head| view.turns_urgent(context, &head)),
                head,
                idle: view.idle_at(context),
                wait: view.wait_ends_at(context),
                lead: view.ahead_until(context),
                waiting: waiting.is_some(),
                prefilling: context.encode.is_some() || waiting.is_some(),
                newcomer: waiting.filter(|_| !context.admitted).map(|segment| segment.prompt_tokens),
            },
        })
    }
}

impl Entry {
    /// Steps until another chunk than now is the first that misses frames, or none is wanted; `None` when none is now.
    pub(crate) fn steps_until(&self, beat: Beat) -> Option<u32> {
        self.step.map(|(_, key, _)| key.steps_until(beat))
    }

    pub(crate) fn is_cut_by_steps(&self) -> bool {
        self.cut.is_some_and(|(key, _)| matches!(key, CutKey::BySteps { .. }))
    }

    pub(crate) fn head(&self) -> Option<&Head> {
        self.rest.head.as_ref()
    }
}

impl Index {
    /// Takes in what a context has become; `None` when it has finished or is gone.
    pub(crate) fn put(&mut self, id: ContextId, new: Option<Entry>) {
        let old = match (self.entries.get_mut(&id), new) {
            (Some(entry), Some(new)) => {
                if entry.rest == new.rest && entry.step.is_some() == new.step.is_some() {
                    let (step, cut) = (new.step, new.cut);
                    let old =
                        (std::mem::replace(&mut entry.step, step), std::mem::replace(&mut entry.cut, cut));
                    self.exchange_step(id, old.0, step);
                    self.exchange_cut(id, old.1, cut);
                    return;
                }
                Some(std::mem::replace(entry, new))
            }
            (Some(_), None) => self.entries.remove(&id),
            (None, Some(new)) => self.entries.insert(id, new),
            (None, None) => return,
        };
        let new = self.entries.get(&id);
        let (old, new) = (Parts::of(old.as_ref(), id), Parts::of(new, id));
        self.exchange_step(id, old.step, new.step);
        self.exchange_cut(id, old.cut, new.cut);
        exchange(&mut self.stepping, old.stepping, new.stepping);
        self.joining = self.joining + usize::from(new.joining) - usize::from(old.joining);
        exchange(&mut self.ready, old.ready, new.ready);
        self.heads = self.heads + usize::from(new.heads) - usize::from(old.heads);
        exchange_head(&mut self.urgent, old.urgent, new.urgent);
        exchange_head(&mut self.background, old.background, new.background);
        exchange(&mut self.restless, old.restless, new.restless);
        exchange(&mut self.turns, old.turns, new.turns);
        exchange(&mut self.idles, old.idle, new.idle);
        exchange(&mut self.waits, old.wait, new.wait);
        exchange(&mut self.leads, old.lead, new.lead);
        exchange(&mut self.waiting, old.waiting, new.waiting);
        exchange(&mut self.prefilling, old.prefilling, new.prefilling);
        match new.newcomer {
            Some(tokens) => drop(self.newcomers.insert(id, tokens)),
            None => drop(self.newcomers.remove(&id)),
        }
    }

    fn exchange_step(&mut self, id: ContextId, old: Option<Step>, new: Option<Step>) {
        if old == new {
            return;
        }
        let positions = |step: Option<Step>| step.map(|(positions, ..)| positions);
        let slack = |step: Option<Step>| step.map(|(_, key, deadline)| (key, deadline));
        self.positions.join(positions(new));
        self.positions.leave(positions(old));
        self.slack.leave(id, slack(old));
        self.slack.join(id, slack(new));
    }

    fn exchange_cut(&mut self, id: ContextId, old: Option<Cut>, new: Option<Cut>) {
        if old != new {
            self.cuts.leave(id, old);
            self.cuts.join(id, new);
        }
    }

    pub(crate) fn head(&self, id: ContextId) -> Option<&Head> {
        self.entries.get(&id)?.rest.head.as_ref()
    }

    /// Heads that may be dispatched, urgent ones or the others, in deadline order.
    pub(crate) fn dispatchable(&self, urgent: bool) -> impl Iterator<Item = &Head> {
        if urgent { self.urgent.values() } else { self.background.values() }
    }

    /// Most positions that a step wanted now covers.
    pub(crate) fn positions_max(&self, beat: Beat) -> u32 {
        self.positions.most().map_or(0, |most| u32::try_from(most + beat.launched).unwrap_or(0))
    }

    /// Contexts for which the time to cut a chunk is kept relative to the steps that landed, in groups.
    pub(crate) fn cuts_by_steps(&self) -> impl Iterator<Item = &[(Tick, ContextId)]> {
        let by_steps = self.cuts.iter().filter(|(key, _)| matches!(key, CutKey::BySteps { .. }));
        by_steps.map(|(_, group)| group)
    }

    /// Prompt positions of contexts whose first prefill waits.
    pub(crate) fn newcomers(&self) -> impl Iterator<Item = (ContextId, u32)> {
        self.newcomers.iter().map(|(id, tokens)| (*id, *tokens))
    }

    /// Least lm slack of those that want a step.
    pub(crate) fn least_slack(&self, view: &View<'_>) -> Span {
        self.least(|key, deadline| view.slack_at(key, deadline))
    }

    /// The same with every chunk cut as short as it can be.
    pub(crate) fn least_cut_slack(&self, view: &View<'_>) -> Span {
        self.least(|key, deadline| view.cut_slack_at(key, deadline))
    }

    fn least(&self, slack: impl Fn(SlackKey, Tick) -> Span) -> Span {
        let firsts = self.slack.iter().filter_map(|(key, group)| Some(slack(key, group.first()?.0)));
        firsts.min().unwrap_or(Span::MAX)
    }

    /// The `most` of those that want a step that have the least slack, least first.
    pub(crate) fn by_slack(&self, view: &View<'_>, most: usize) -> Vec<ContextId> {
        let firsts = self.slack.iter().flat_map(|(key, group)| {
            group.iter().take(most).map(move |(deadline, id)| (view.slack_at(key, *deadline), *id))
        });
        let mut by_slack: Vec<(Span, ContextId)> = firsts.collect();
        by_slack.sort_unstable();
        by_slack.truncate(most);
        by_slack.into_iter().map(|(_, id)| id).collect()
    }

    /// How many of those that want a step have less slack than `bound`; counts no further than `enough`.
    pub(crate) fn short_of(&self, view: &View<'_>, bound: Span, enough: usize) -> usize {
        let short = self.slack.iter().flat_map(|(key, group)| {
            group.iter().take_while(move |(deadline, _)| view.slack_at(key, *deadline) < bound)
        });
        short.take(enough).count()
    }

    /// Whether one of those that want a step has at least this much slack.
    pub(crate) fn any_with_slack(&self, view: &View<'_>, bound: Span) -> bool {
        self.slack.iter().any(|(key, group)| {
            group.last().is_some_and(|(deadline, _)| view.slack_at(key, *deadline) >= bound)
        })
    }

    /// Contexts that time alone has changed by now.
    pub(crate) fn due(&self, now: Tick) -> impl Iterator<Item = ContextId> {
        by_now(&self.leads, now).chain(by_now(&self.turns, now))
    }

    /// Contexts that have waited long enough, for text or to begin.
    pub(crate) fn expired(&self, now: Tick) -> Vec<ContextId> {
        let mut expired: Vec<ContextId> = by_now(&self.idles, now).chain(by_now(&self.waits, now)).collect();
        expired.sort_unstable();
        expired.dedup();
        expired
    }

    /// Contexts that the pace and costs may have changed: heads that hang on them, and chunks that are to
    /// be cut short by now.
    pub(crate) fn restless<'a>(&'a self, view: &'a View<'_>) -> impl Iterator<Item = ContextId> + 'a {
        let cuts = self.cuts.iter().flat_map(move |(key, group)| {
            group.iter().take_while(move |(deadline, _)| view.cut_tick(key, *deadline) <= view.now)
        });
        self.restless.iter().copied().chain(cuts.map(|(_, id)| *id))
    }

    /// When the next chunk is to be cut short.
    pub(crate) fn next_cut(&self, view: &View<'_>) -> Option<Tick> {
        let first = |(key, group): (CutKey, &[(Tick, ContextId)])| Some(view.cut_tick(key, group.first()?.0));
        self.cuts.iter().filter_map(first).min()
    }
}

fn by_now(agenda: &Agenda, now: Tick) -> impl Iterator<Item = ContextId> {
    // In order, and nearly always nobody.
    agenda.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| *id)
}

/// An entry's places in the index.
#[derive(Default)]
struct Parts {
    step: Option<Step>,
    cut: Option<Cut>,
    stepping: Option<ContextId>,
    joining: bool,
    ready: Option<ContextId>,
    heads: bool,
    urgent: Option<Head>,
    background: Option<Head>,
    restless: Option<ContextId>,
    turns: Option<(Tick, ContextId)>,
    idle: Option<(Tick, ContextId)>,
    wait: Option<(Tick, ContextId)>,
    lead: Option<(Tick, ContextId)>,
    waiting: Option<ContextId>,
    prefilling: Option<ContextId>,
    newcomer: Option<u32>,
}

impl Parts {
    fn of(entry: Option<&Entry>, id: ContextId) -> Self {
        let Some(Entry { step, cut, rest }) = entry else { return Self::default() };
        let named = |holds: bool| holds.then_some(id);
        let at = |tick: Option<Tick>| tick.map(|tick| (tick, id));
        let free = rest.head.filter(|_| rest.free);
        Self {
            step: *step,
            cut: *cut,
            stepping: named(step.is_some()),
            joining: step.is_some() && rest.head.is_none(),
            ready: named(free.is_some()),
            heads: rest.head.is_some(),
            urgent: free.filter(|head| head.urgent),
            background: free.filter(|head| !head.urgent),
            restless: named(rest.restless),
            turns: at(rest.turns),
            idle: at(rest.idle),
            wait: at(rest.wait),
            lead: at(rest.lead),
            waiting: named(rest.waiting),
            prefilling: named(rest.prefilling),
            newcomer: rest.newcomer,
        }
    }
}

fn exchange_head(heads: &mut Heads, old: Option<Head>, new: Option<Head>) {
    if old == new {
        return;
    }
    if let Some(old) = old {
        heads.remove(&(old.deadline, old.context));
    }
    heads.extend(new.map(|head| ((head.deadline, head.context), head)));
}

fn exchange<T: Ord>(set: &mut BTreeSet<T>, old: Option<T>, new: Option<T>) {
    if old == new {
        return;
    }
    if let Some(old) = old {
        set.remove(&old);
    }
    set.extend(new);
}
