//! What the scheduler keeps by context and by tick, laid out for what is asked of it at every row.

#[expect(
    clippy::disallowed_types,
    reason = "ById looks up and offers no iteration, whose order would be the hash's"
)]
use std::collections::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Deref;

use contract::{ContextId, Tick};

/// Anything by context, found by one multiplication, and not to be iterated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ById<T>(Map<T>);

#[expect(clippy::disallowed_types, reason = "as above")]
type Map<T> = HashMap<ContextId, T, BuildHasherDefault<IdHasher>>;

impl<T> ById<T> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains_key(&self, id: &ContextId) -> bool {
        self.0.contains_key(id)
    }

    pub(crate) fn get(&self, id: &ContextId) -> Option<&T> {
        self.0.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &ContextId) -> Option<&mut T> {
        self.0.get_mut(id)
    }

    pub(crate) fn insert(&mut self, id: ContextId, value: T) -> Option<T> {
        self.0.insert(id, value)
    }

    pub(crate) fn remove(&mut self, id: &ContextId) -> Option<T> {
        self.0.remove(id)
    }
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        Self(Map::default())
    }
}

/// Ids are handed out in order by this process, so nobody can choose them to collide.
#[derive(Clone, Copy, Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The golden ratio's fraction (Knuth, 6.4): near ids land far apart.
        let spread = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}

/// A set in order. Its members lie side by side: with as many as contexts may be open, moving those on the shorter side
/// of one that comes or goes costs less than a tree's nodes do, and looking through them next to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sorted<T>(VecDeque<T>);

impl<T: Ord> Sorted<T> {
    pub(crate) fn insert(&mut self, member: T) {
        if let Err(at) = self.0.binary_search(&member) {
            self.0.insert(at, member);
        }
    }

    pub(crate) fn remove(&mut self, member: &T) {
        if let Ok(at) = self.0.binary_search(member) {
            self.0.remove(at);
        }
    }

    /// Holds it, or does not.
    pub(crate) fn set(&mut self, member: T, holds: bool) {
        if holds {
            self.insert(member);
        } else {
            self.remove(&member);
        }
    }
}

impl<T> Deref for Sorted<T> {
    type Target = VecDeque<T>;

    fn deref(&self) -> &VecDeque<T> {
        &self.0
    }
}

impl<T> Default for Sorted<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

/// Contexts in the order of a tick, in groups that share the rest of what is asked. There are few groups, and
/// new ones come all the time: the room of emptied ones is kept for them.
#[derive(Clone, Debug)]
pub(crate) struct Groups<K> {
    groups: Vec<(K, Members)>,
    spare: Vec<Members>,
}

type Members = Vec<(Tick, ContextId)>;

impl<K: Ord + Copy> Groups<K> {
    /// Groups that hold somebody, and who that is, earliest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &[(Tick, ContextId)])> {
        self.groups.iter().map(|(key, members)| (*key, &members[..]))
    }

    pub(crate) fn leave(&mut self, id: ContextId, place: Option<(K, Tick)>) {
        let Some((key, tick)) = place else { return };
        if let Ok(at) = self.find(key) {
            let members = &mut self.groups[at].1;
            if let Ok(place) = members.binary_search(&(tick, id)) {
                members.remove(place);
            }
            if members.is_empty() {
                self.spare.push(self.groups.remove(at).1);
            }
        }
    }

    pub(crate) fn join(&mut self, id: ContextId, place: Option<(K, Tick)>) {
        let Some((key, tick)) = place else { return };
        let at = match self.find(key) {
            Ok(at) => at,
            Err(at) => {
                self.groups.insert(at, (key, self.spare.pop().unwrap_or_default()));
                at
            }
        };
        let members = &mut self.groups[at].1;
        if let Err(at) = members.binary_search(&(tick, id)) {
            members.insert(at, (tick, id));
        }
    }

    fn find(&self, key: K) -> Result<usize, usize> {
        self.groups.binary_search_by(|(other, _)| other.cmp(&key))
    }
}

impl<K> Default for Groups<K> {
    fn default() -> Self {
        Self { groups: Vec::new(), spare: Vec::new() }
    }
}

impl<K: Ord + Copy> PartialEq for Groups<K> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<K: Ord + Copy> Eq for Groups<K> {}

/// How many there are of each number, for the largest of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(BTreeMap<i64, u32>);

impl Tally {
    /// The largest number there is one of.
    pub(crate) fn most(&self) -> Option<i64> {
        self.0.last_key_value().map(|(number, _)| *number)
    }

    pub(crate) fn join(&mut self, number: Option<i64>) {
        let Some(number) = number else { return };
        *self.0.entry(number).or_default() += 1;
    }

    pub(crate) fn leave(&mut self, number: Option<i64>) {
        let Some(number) = number else { return };
        if let Some(count) = self.0.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ContextId {
        ContextId(number)
    }

    #[test]
    fn a_sorted_set_holds_each_once_and_in_order_whoever_comes_and_goes() {
        let mut set = Sorted::default();
        for number in [5, 1, 9, 5, 3] {
            set.insert(number);
        }
        set.remove(&1);
        set.remove(&2);
        set.set(9, false);
        set.set(4, true);
        assert!(set.iter().eq(&[3, 4, 5]), "{set:?}");
    }

    #[test]
    fn groups_keep_their_members_by_tick_and_an_emptied_one_is_as_if_it_had_never_been() {
        let mut groups = Groups::default();
        for (member, key, tick) in [(1, 'b', 30), (2, 'b', 10), (3, 'a', 20), (4, 'b', 10)] {
            groups.join(id(member), Some((key, Tick::from_micros(tick))));
        }
        groups.leave(id(3), Some(('a', Tick::from_micros(20))));
        groups.leave(id(9), Some(('c', Tick::from_micros(20))));
        let kept: Vec<_> = groups.iter().map(|(key, members)| (key, members.to_vec())).collect();
        let members = [(10, 2), (10, 4), (30, 1)].map(|(tick, member)| (Tick::from_micros(tick), id(member)));
        assert_eq!(kept, [('b', members.to_vec())]);
        let mut fresh = Groups::default();
        for (tick, member) in members {
            fresh.join(member, Some(('b', tick)));
        }
        assert_eq!(groups, fresh);
    }

    #[test]
    fn a_tally_knows_its_largest_number_as_members_come_and_go() {
        let mut tally = Tally::default();
        for number in [3, 70, 70, 5] {
            tally.join(Some(number));
        }
        let mut most = vec![tally.most()];
        for number in [70, 70, 5, 3] {
            tally.leave(Some(number));
            most.push(tally.most());
        }
        assert_eq!(most, [Some(70), Some(70), Some(5), Some(3), None]);
        assert_eq!(tally, Tally::default());
    }
}
