//! What is asked of all contexts at once, kept in order, so that an event costs what it changes and not
//! what is open.
//!
//! An [`Entry`] says what one context is to the lanes now; it follows from the context, the profile and the
//! moment alone. It is made anew when its context was touched, and when time alone changes it: each such
//! change has its tick in one of the agendas. What depends on the pace or on costs, which change with every
//! launch, is kept by deadline in groups that share the rest, so that one comparison a group decides.

use std::collections::VecDeque;

use contract::{ContextId, Span, Tick};

use crate::beat::Beat;
use crate::context::{Context, Segment};
use crate::order::{Groups, Sorted, Tally};
use crate::slack::{CutKey, Head, SlackKey, View};

/// Ticks at which something of a context falls due.
pub(crate) type Agenda = Sorted<(Tick, ContextId)>;

pub(crate) type Step = (i64, SlackKey, Tick);
type Cut = (CutKey, Tick);

/// One context as the lanes see it; nothing to them once it has finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// It wants a step: positions that step covers, less the steps launched so far, and what its slack follows from.
    step: Option<Step>,
    /// It has frames for less than a chunk: what the time to cut it follows from.
    cut: Option<Cut>,
    rest: Rest,
}

/// What most rows leave as it is, while every one changes the two above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rest {
    head: Option<Head>,
    /// Its head may be dispatched: its predecessor has finished, and the output queue, which holds `lm_lead` plus one
    /// chunk, has room for it.
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
    pub(crate) stepping: Sorted<ContextId>,
    positions: Tally,
    slack: Groups<SlackKey>,
    cuts: Groups<CutKey>,
    /// How many contexts want a step and have no chunk ready.
    pub(crate) joining: usize,
    /// How many contexts have a chunk ready, whether or not it may be dispatched now.
    pub(crate) heads: usize,
    /// Heads that may be dispatched, in deadline order: most come at the back and go at the front.
    urgent: VecDeque<Head>,
    background: VecDeque<Head>,
    restless: Sorted<ContextId>,
    pub(crate) turns: Agenda,
    pub(crate) idles: Agenda,
    pub(crate) waits: Agenda,
    pub(crate) leads: Agenda,
    pub(crate) waiting: Sorted<ContextId>,
    pub(crate) prefilling: Sorted<ContextId>,
    /// With its prompt's positions.
    newcomers: Sorted<(ContextId, u32)>,
}

impl Entry {
    pub(crate) fn of(context: &Context, view: &View<'_>) -> Self {
        if context.finished {
            return Self::default();
        }
        let active = context.active();
        let known = active.is_some_and(|segment| view.step_is_known(context, segment));
        let ahead = view.is_ahead(context);
        let wants = known && (view.profile.state_grows || !ahead);
        let (head, cut) = view.next_chunk(context, known, wants);
        let waiting = context.waiting();
        Self {
            step: active.filter(|_| wants).map(|segment| step_of(context, segment, view)),
            cut,
            rest: Rest {
                free: !ahead && !context.codec_in_flight(),
                restless: head.is_some_and(|head| head.cut || context.forced_urgent),
                turns: head.filter(|head| !head.urgent).map(|head| view.turns_urgent(context, &head)),
                head,
                idle: view.idle_at(context),
                wait: view.wait_ends_at(context),
                lead: if ahead { view.ahead_until(context) } else { None },
                waiting: waiting.is_some(),
                prefilling: context.encode.is_some() || waiting.is_some(),
                newcomer: waiting.filter(|_| !context.admitted).map(|segment| segment.prompt_tokens),
            },
        }
    }

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

    const fn joins(&self) -> bool {
        self.step.is_some() && self.rest.head.is_none()
    }
}

impl Rest {
    /// The head, if it may be dispatched, among the urgent ones or the others.
    fn dispatchable(&self, urgent: bool) -> Option<&Head> {
        self.head.as_ref().filter(|head| self.free && head.urgent == urgent)
    }
}

/// Where the next step of a context's active segment stands, which it wants.
pub(crate) fn step_of(context: &Context, segment: &Segment, view: &View<'_>) -> Step {
    let (key, deadline) = view.slack_key(context, segment);
    let positions = i64::from(segment.positions_after(segment.launched));
    (positions - view.beat.launched, key, deadline)
}

impl Index {
    /// Takes in what a context has become; `entry` is what is kept of it.
    pub(crate) fn put(&mut self, id: ContextId, entry: &mut Entry, new: &Entry) {
        self.exchange_step(id, entry.step, new.step);
        if entry.cut != new.cut {
            self.cuts.leave(id, entry.cut);
            self.cuts.join(id, new.cut);
        }
        self.joining = self.joining + usize::from(new.joins()) - usize::from(entry.joins());
        (entry.step, entry.cut) = (new.step, new.cut);
        if entry.rest != new.rest {
            self.exchange_rest(id, &entry.rest, &new.rest);
            entry.rest = new.rest;
        }
    }

    fn exchange_rest(&mut self, id: ContextId, old: &Rest, new: &Rest) {
        for (heads, urgent) in [(&mut self.urgent, true), (&mut self.background, false)] {
            exchange_head(heads, old.dispatchable(urgent), new.dispatchable(urgent));
        }
        self.heads = self.heads + usize::from(new.head.is_some()) - usize::from(old.head.is_some());
        for (set, was, is) in [
            (&mut self.restless, old.restless, new.restless),
            (&mut self.waiting, old.waiting, new.waiting),
            (&mut self.prefilling, old.prefilling, new.prefilling),
        ] {
            if was != is {
                set.set(id, is);
            }
        }
        for (agenda, was, is) in [
            (&mut self.turns, old.turns, new.turns),
            (&mut self.idles, old.idle, new.idle),
            (&mut self.waits, old.wait, new.wait),
            (&mut self.leads, old.lead, new.lead),
        ] {
            if was != is {
                was.inspect(|at| agenda.remove(&(*at, id)));
                is.inspect(|at| agenda.insert((*at, id)));
            }
        }
        if old.newcomer != new.newcomer {
            old.newcomer.inspect(|tokens| self.newcomers.remove(&(id, *tokens)));
            new.newcomer.inspect(|tokens| self.newcomers.insert((id, *tokens)));
        }
    }

    /// As [`Index::put`], after a step that changed only which chunk of a context is the first that misses frames.
    pub(crate) fn put_step(&mut self, id: ContextId, entry: &mut Entry, step: Step) {
        let old = entry.step.replace(step);
        self.exchange_step(id, old, Some(step));
    }

    fn exchange_step(&mut self, id: ContextId, old: Option<Step>, new: Option<Step>) {
        if old == new {
            return;
        }
        if old.is_some() != new.is_some() {
            self.stepping.set(id, new.is_some());
        }
        let positions = |step: Option<Step>| step.map(|(positions, ..)| positions);
        if positions(old) != positions(new) {
            self.positions.join(positions(new));
            self.positions.leave(positions(old));
        }
        let slack = |step: Option<Step>| step.map(|(_, key, deadline)| (key, deadline));
        if slack(old) != slack(new) {
            self.slack.leave(id, slack(old));
            self.slack.join(id, slack(new));
        }
    }

    /// Heads that may be dispatched, urgent ones or the others, in deadline order.
    pub(crate) fn dispatchable(&self, urgent: bool) -> impl Iterator<Item = &Head> {
        if urgent { self.urgent.iter() } else { self.background.iter() }
    }

    /// How many there are of both, and whose is next after this context's in the circle of their ids.
    pub(crate) fn next_ready(&self, after: ContextId) -> (u32, Option<ContextId>) {
        let ids = || self.urgent.iter().chain(&self.background).map(|head| head.context);
        let next = ids().filter(|id| *id > after).min().or_else(|| ids().min());
        ((self.urgent.len() + self.background.len()) as u32, next)
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
        self.newcomers.iter().copied()
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
        let early = view.cut_early_max();
        let near = move |deadline: Tick| deadline - early <= view.now;
        let cuts = self.cuts.iter().filter(move |(_, group)| group.first().is_some_and(|(at, _)| near(*at)));
        let cuts = cuts.flat_map(move |(key, group)| {
            group.iter().take_while(move |(deadline, _)| view.cut_tick(key, *deadline) <= view.now)
        });
        self.restless.iter().copied().chain(cuts.map(|(_, id)| *id))
    }

    /// When the next chunk is to be cut short.
    pub(crate) fn next_cut(&self, view: &View<'_>) -> Option<Tick> {
        let early = view.cut_early_max();
        let firsts = self.cuts.iter().filter_map(|(key, group)| Some((key, group.first()?.0)));
        firsts.fold(None, |next: Option<Tick>, (key, deadline)| match next {
            Some(at) if deadline - early >= at => next,
            Some(at) => Some(view.cut_tick(key, deadline).min(at)),
            None => Some(view.cut_tick(key, deadline)),
        })
    }
}

fn by_now(agenda: &Agenda, now: Tick) -> impl Iterator<Item = ContextId> {
    // In order, and nearly always nobody.
    agenda.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| *id)
}

fn exchange_head(heads: &mut VecDeque<Head>, old: Option<&Head>, new: Option<&Head>) {
    if old == new {
        return;
    }
    let place = |head: &Head| (head.deadline, head.context);
    if let Some(old) = old
        && let Ok(at) = heads.binary_search_by_key(&place(old), place)
    {
        heads.remove(at);
    }
    if let Some(new) = new
        && let Err(at) = heads.binary_search_by_key(&place(new), place)
    {
        heads.insert(at, *new);
    }
}
