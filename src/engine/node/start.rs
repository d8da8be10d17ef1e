//! Starting, changing roles and stopping: what a node finds out before it grants, and what it
//! records when it stops.
//!
//! A start has two parts. Before the data set is loaded, the node learns what was found at the
//! state file's path ([`Node::found`]). When the data set has been loaded ([`Node::begin`]), it is
//! known which leases came back, so the node decides what to wait for, and the file is written
//! anew.

use std::borrow::Cow;
use std::fmt;

use super::authority::with_drift;
use super::recovery::{promote, recover, start, stop};
use super::tending::Reported;
use super::{Ceilings, Census, Change, Found, Loaded, Lock, Node, Recovery, Saved, Stopped};
use crate::engine::{Clocks, Fence, Instant, Millis, QuarantineReason, UnixTime};

/// How far the start of a node has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// The data set is not loaded yet. `None`: the node keeps no state file.
    Starting(Option<Found>),
    /// The start has been decided.
    Begun,
}

/// Whether a node goes into quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caution {
    /// At all.
    pub quarantine: bool,
    /// Also when it is promoted.
    pub on_promotion: bool,
}

impl Caution {
    /// Whether a node that may have replaced another waits for that one's leases.
    pub fn waits_for_others(self) -> bool {
        self.quarantine && self.on_promotion
    }
}

/// What the caller of a start must do.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Begun {
    /// What the state file must contain.
    pub saved: Saved,
    /// How to correct each lock that was loaded.
    pub recovery: Recovery,
    /// What an operator should know.
    pub warning: Option<Warning>,
}

/// A quarantine, or one that is switched off: a line for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warning {
    reason: QuarantineReason,
    left: Millis,
    floor: Fence,
    waits: bool,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warning { reason, left, floor, waits } = self;
        if *waits {
            let left = left.get();
            write!(
                f,
                "QUARANTINE: {reason}; no lock is granted for at least {left} ms. Fences go "
            )?;
            write!(
                f,
                "on above {floor}. CONFIG SET lockmod.quarantine no ends this wait, if you "
            )?;
            f.write_str("know that no lease is outstanding")
        } else {
            write!(f, "WARNING: {reason}, but quarantine is switched off: ")?;
            f.write_str("locks are granted at once")
        }
    }
}

impl Node {
    /// Notes what was found at the state file's path, before the data set is loaded; `None`: the
    /// node keeps no file. A file from this boot has the clocks by which the node dates leases.
    /// `read`: the current reading of both clocks.
    pub fn found(&mut self, found: Option<Found>, read: Clocks, boot: u64) {
        self.stage = Stage::Starting(found);
        self.dating = found.and_then(|found| found.dating(boot)).unwrap_or(read);
    }

    /// Whether the start has been decided: see [`Node::begin`].
    #[inline]
    pub fn has_begun(&self) -> bool {
        matches!(self.stage, Stage::Begun)
    }

    /// The [`Inventory::since`](super::Inventory::since) of the inventory that the start needs;
    /// `None` if it needs none.
    pub fn asks_for_inventory(&self) -> Option<UnixTime> {
        match self.stage {
            Stage::Starting(Some(Found::Present(Saved { stop: Some(stopped), .. })))
                if stopped.is_saved =>
            {
                Some(stopped.inventory.since)
            }
            Stage::Starting(_) | Stage::Begun => None,
        }
    }

    /// Decides the start, after the data set has been loaded. `None`: the node keeps no state file,
    /// and grants at once.
    ///
    /// Nothing is granted before the file is written: see [`Change::Begun`].
    pub fn begin(&mut self, loaded: Loaded, caution: Caution) -> Option<Begun> {
        self.tally.decides = !loaded.is_replica;
        let stage = std::mem::replace(&mut self.stage, Stage::Begun);
        let Stage::Starting(found) = stage else { return None };
        if let Some(authority) = self.promises.authority_mut() {
            let longest = found.map_or(Millis::ZERO, |found| found.longest());
            authority.restarts(longest, loaded.max_ttl, loaded.clocks.now);
            if !loaded.is_replica {
                authority.appointed();
            }
        }
        let found = found?;
        let loaded = Loaded { highest: self.promises.highest(), ..loaded };
        let mut recovery = recover(found, loaded);
        if let Some((found, loaded)) = self.outside_of_its_group(found, loaded) {
            let former = recovery.quarantine;
            recovery = recover(found, loaded);
            let waits = [former, recovery.quarantine].into_iter().flatten();
            recovery.quarantine = waits.max_by_key(|(until, _)| *until);
        }
        let (waits, is_same_clock) =
            (recovery.quarantine.is_some(), found.has_stopped_here(loaded));
        self.slots.iter_mut().for_each(|slots| {
            let gone_until = found.gone_until((loaded, waits), slots.gone_until);
            slots.starts(found, (gone_until, is_same_clock), loaded.clocks.now);
        });
        recovery.nothing_counts |= self.have_names_changed;
        recovery.nothing_is_carried |= self.have_names_changed;
        let warning = self.warning(recovery, loaded.clocks.now, caution.quarantine);
        if !caution.quarantine {
            recovery.quarantine = None;
        }
        let mut saved = start(found, loaded, recovery, &self.promises);
        saved.doubts = self.doubts_at_start(found, loaded, caution);
        self.dating = saved.dating;
        self.is_always_durable = saved.is_always_durable;
        self.promises.keep(Ceilings::NONE);
        self.promises.recover(recovery);
        Some(Begun { saved, recovery, warning })
    }

    /// Lets a master of a Cluster doubt, if what it found requires that. Whether the file says so:
    /// also if others may show that it has lost its file, for it may crash before they do. One that
    /// rests on replicas waits after each start, from when most masters confirm its slots; but it
    /// may owe its epoch to a wait in one of them.
    fn doubts_at_start(&mut self, found: Found, loaded: Loaded, caution: Caution) -> bool {
        let (is_master, rests) = (!loaded.is_replica, self.rests_on_replicas());
        let Some(slots) = self.slots.as_mut().filter(|_| is_master && caution.quarantine) else {
            return false;
        };
        let (doubts, is_first) = match found {
            Found::Present(saved) if rests => (saved.doubts, false),
            _ if rests => (false, false),
            _ => (found.doubts(loaded.lock_count), found == Found::Missing),
        };
        if doubts {
            slots.doubt();
        } else if is_first {
            slots.may_have_lived_before();
        }
        doubts || is_first
    }

    /// A node that rested on replicas when it wrote its file, and does not now, starts like a
    /// replica that became a master: another of its group may have been the master meanwhile.
    fn outside_of_its_group(&self, found: Found, loaded: Loaded) -> Option<(Found, Loaded)> {
        let Found::Present(saved) = found else { return None };
        let is_outside = found.was_in_group() && !self.rests_on_replicas() && !loaded.is_replica;
        is_outside.then(|| {
            let max_ttl = with_drift(saved.longest);
            let saved = Saved { was_replica: true, ..saved };
            (Found::Present(saved), Loaded { max_ttl, ..loaded })
        })
    }

    /// Notes that the node has become a master.
    pub fn promoted(
        &mut self,
        now: Instant,
        max_ttl: Millis,
        caution: Caution,
    ) -> (Change, Option<Warning>) {
        self.is_replica = false;
        self.tally.decides = true;
        let waits = caution.waits_for_others();
        let rests = self.rests_on_replicas();
        let doubts = self.slots.as_mut().filter(|_| waits && !rests).map(|slots| slots.doubt());
        // One that rests on replicas waits when it has authority.
        let longest = if rests { max_ttl } else { self.longest(max_ttl, now) };
        let mut recovery = promote(self.date(now), self.promises.highest(), longest);
        if let Some(authority) = self.promises.authority_mut() {
            authority.appointed();
        }
        let warning = self.warning(recovery, now, waits);
        if !waits {
            recovery.quarantine = None;
        }
        self.promises.recover(recovery);
        let until = recovery.quarantine.map(|(until, _)| until);
        let used = Ceilings { fence: recovery.floor, lease: until.unwrap_or_default() };
        (Change::Promoted { used, until, doubts: doubts.is_some() }, warning)
    }

    /// Notes that leases may have moved to other names: databases were swapped, or a lock is being
    /// restored. In a quarantine nothing counts from then on, and the state file must record that.
    pub fn names_changed(&mut self, now: Instant) -> Option<Change> {
        self.have_names_changed |= !self.has_begun();
        let until = self.promises.names_changed(now)?;
        Some(Change::NamesChanged { until })
    }

    /// Notes that leases are gone that stand up to `until`, without a release: their locks were
    /// deleted, or moved. Returns what the state file must record before another is granted.
    ///
    /// After a crash, the data set may contain them again. Meanwhile others may have been granted
    /// their locks, which may be forgotten, so they must not count.
    pub fn removed(&mut self, until: Instant, now: Instant) -> Option<Change> {
        let is_news = now <= until && self.removed_until < until;
        if !is_news || !self.has_begun() || self.is_replica {
            return None;
        }
        // With the leases that the file covers anyway, so that it is not written for each.
        let covered = self.promises.ceilings().map_or(until, |ceilings| ceilings.lease);
        self.removed_until = until.max(covered);
        Some(Change::LeasesRemoved { until: self.removed_until })
    }

    /// `lock` as it is written to a data set, a dump or a rewritten append-only file.
    ///
    /// While nothing counts, its lease is marked as provisional. The state file records this too,
    /// but it may be impossible to write. Then, without the mark, the leases would count after a
    /// crash, although they may have moved to other names.
    pub fn as_saved<'a>(&self, lock: &'a Lock, now: Instant) -> Cow<'a, Lock> {
        let is_to_be_told = self.have_names_changed && !self.has_begun();
        if !is_to_be_told && !self.promises.nothing_counts(now) {
            return Cow::Borrowed(lock);
        }
        let mut marked = lock.clone();
        marked.mark_provisional();
        Cow::Owned(marked)
    }

    /// Notes that the node has become a replica: all waiters are dismissed, line by line.
    pub fn demoted(&mut self) -> Change {
        self.is_replica = true;
        self.tally.decides = false;
        self.reported = Reported::NOTHING;
        if let Some(authority) = self.promises.authority_mut() {
            authority.dismissed();
        }
        self.all_lines_changed();
        Change::Demoted
    }

    /// Ends the quarantine, if `caution` asks for none. Returns whether there was one.
    pub fn heed(&mut self, caution: Caution, now: Instant) -> bool {
        let ends = !caution.quarantine && self.promises.quarantine(now).is_some();
        if !caution.quarantine {
            self.promises.end_quarantine();
        }
        if ends {
            // Some free locks have not been offered to their waiters.
            self.all_lines_changed();
        }
        ends
    }

    /// What an operator should know about the quarantine, if there is one. A master that rests on
    /// replicas grants only after they have supported it throughout the wait.
    fn warning(&self, recovery: Recovery, now: Instant, waits: bool) -> Option<Warning> {
        let (until, reason) = recovery.quarantine?;
        let authority = self.promises.authority().filter(|_| self.tally.decides);
        let least = authority.map_or(Millis::ZERO, |authority| authority.first_grant_in(now));
        Some(Warning { reason, left: now.until(until).max(least), floor: recovery.floor, waits })
    }

    /// Notes that the node stops. `census` is that of its data set; `is_saved`: the whole data set
    /// is on disk.
    pub fn stop(&self, now: Instant, census: Census, is_saved: bool) -> Change {
        let stopped = Stopped { is_saved, inventory: census.inventory };
        let (used, stopped) = stop(&self.promises, now, census.longest, stopped);
        let lengths =
            self.slots.as_ref().map(|slots| slots.lengths.at_stop(now)).unwrap_or_default();
        let gone_until = self.slots.as_ref().map(|_| self.longest_until());
        Change::Stopped { used, stopped, gone_until, lengths }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Came, ClusterMemory, Inventory, Lease, Mode, Shares, Stop, Token};

    const CLOCKS: Clocks =
        Clocks { now: Instant::from_millis(1_000), wall: UnixTime::from_millis(50_000) };
    const CAUTION: Caution = Caution { quarantine: true, on_promotion: true };

    /// A node with a damaged state file, before it has begun.
    fn node() -> Node {
        let mut node = Node::new();
        node.found(Some(Found::Damaged), CLOCKS, 7);
        node
    }

    fn begin(node: &mut Node) {
        assert!(node.begin(loaded(1, false), CAUTION).is_some_and(|begun| begun.warning.is_some()));
    }

    fn held() -> Lock {
        let token = Token::new(b"token", 64).unwrap();
        let (fence, ends_at) = (Fence::new(3).unwrap(), Instant::from_millis(9_000));
        let mut lock = Lock::default();
        let (label, mode, is_provisional) = (&b""[..], Mode::Exclusive, false);
        lock.apply(Lease { token, fence, ends_at, label, mode, is_provisional }, CLOCKS.now);
        lock
    }

    #[test]
    fn removed_leases_are_recorded_once_while_they_stand() {
        let removed = |node: &mut Node, until, now| {
            node.removed(Instant::from_millis(until), Instant::from_millis(now))
        };
        let mut node = node();
        assert_eq!(removed(&mut node, 9_000, 1_000), None, "it is loading");
        begin(&mut node);
        let recorded = |until| Some(Change::LeasesRemoved { until: Instant::from_millis(until) });
        assert_eq!(removed(&mut node, 9_000, 9_001), None, "it has ended");
        assert_eq!(removed(&mut node, 9_000, 2_000), recorded(9_000));
        assert_eq!(removed(&mut node, 8_000, 2_000), None, "covered");
        assert_eq!(removed(&mut node, 9_500, 2_000), recorded(9_500));
        let _ = node.demoted();
        assert_eq!(removed(&mut node, 9_900, 2_000), None, "its master records it");
    }

    fn loaded(lock_count: u64, is_replica: bool) -> Loaded {
        Loaded {
            port: 7,
            clocks: CLOCKS,
            boot: 7,
            lock_count,
            inventory: Inventory::default(),
            was_read: true,
            highest: Fence::ZERO,
            is_always_durable: false,
            is_replica,
            max_ttl: Millis::new(500),
        }
    }

    /// Regression: a promoted master forgot at a restart that its former master may go on.
    #[test]
    fn a_master_of_a_cluster_doubts_after_a_start_what_it_cannot_know() {
        let begun = |found, loaded, replicas, caution| {
            let mut node = Node::new();
            node.rest_on(replicas);
            node.join_cluster(7, ClusterMemory::default(), CLOCKS.now);
            node.found(Some(found), CLOCKS, 7);
            let saved = node.begin(loaded, caution).expect("it keeps a file").saved;
            assert_eq!(node.news_of_slots(CLOCKS.now), [], "the file has that");
            (node, saved)
        };
        let saved = begun(Found::Missing, loaded(0, false), 0, CAUTION).1;
        assert!(saved.doubts, "others may show that it is not the first start");
        let saved = Saved { doubts: false, ..saved };
        let doubts = |found, loaded| begun(found, loaded, 0, CAUTION).1.doubts;
        let doubtful = Found::Present(Saved { doubts: true, ..saved });
        let replica = Found::Present(Saved { was_replica: true, ..saved });
        assert!(!doubts(Found::Present(saved), loaded(1, false)));
        assert!(
            doubts(Found::Missing, loaded(1, false)) && doubts(Found::Damaged, loaded(0, false))
        );
        assert!(doubts(doubtful, loaded(1, false)) && doubts(replica, loaded(1, false)));
        assert!(!doubts(replica, loaded(1, true)), "it is one still");
        // Regression: one that rests on replicas forgot that it owed its epoch to a wait in a slot.
        assert!(begun(doubtful, loaded(1, false), 2, CAUTION).1.doubts);
        for found in [Found::Missing, Found::Damaged, replica] {
            assert!(!begun(found, loaded(1, false), 2, CAUTION).1.doubts, "it waits in any case");
        }
        let reckless = Caution { quarantine: false, ..CAUTION };
        assert!(!begun(doubtful, loaded(1, false), 0, reckless).1.doubts);
        let mut promoted = begun(replica, loaded(1, true), 0, CAUTION).0;
        promoted.rejoin_cluster(7);
        let (change, _) = promoted.promoted(CLOCKS.now, Millis::new(500), CAUTION);
        assert!(matches!(change, Change::Promoted { doubts: true, .. }));
        assert_eq!(promoted.news_of_slots(CLOCKS.now), []);
        // Most masters confirm its slots: it waits there, and then doubts no more.
        let (mut node, _) = begun(doubtful, loaded(1, false), 0, CAUTION);
        let shares = Shares { name: b"aa".to_vec(), own: vec![(3, 4)], ..Shares::default() };
        let settings = (Millis::new(500), CAUTION);
        let mut seen = Vec::new();
        for now in (2_000..10_500).step_by(100) {
            let now = Instant::from_millis(now);
            node.see(&shares, now);
            assert_eq!(node.confirm_question(now, settings.0), None, "it is alone");
            let came = [3, 4].map(|slot| {
                loop {
                    match node.come(slot, Clocks { now, ..CLOCKS }, settings) {
                        Err(Stop::Persist(ceilings)) => drop(node.persisted(ceilings)),
                        Err(Stop::Refused(refusal)) => panic!("{refusal}"),
                        Ok(came) => break came,
                    }
                }
            });
            if node.owes_epoch(now) {
                node.raised_epoch(true);
            }
            let waits = came.iter().any(|came| matches!(came, Came::Waits { .. }));
            seen.push((waits, came, node.news_of_slots(now)));
        }
        let waited = seen.iter().filter(|(waits, ..)| *waits).count();
        assert!((55..65).contains(&waited), "for {waited} tenths of a second");
        let (_, came, news) =
            seen.iter().find(|(.., news)| news.contains(&Change::Doubts(false))).expect("it ends");
        assert!(came.iter().all(|came| matches!(came, Came::Decides(_))), "{came:?}");
        assert_eq!(news.len(), 1);
    }

    /// The server may have removed locks of a slot that it lost, also before it stopped.
    #[test]
    fn leases_that_are_gone_count_after_a_clean_stop_if_the_start_finds_all_locks() {
        let inventory = Inventory::default();
        let stop = Some(Stopped { is_saved: true, inventory });
        let saved = Saved { stop, ..start_of(Found::Missing, loaded(0, false)) };
        let stopped_until = Some(Instant::from_millis(9_000));
        // What the next clean stop writes.
        let until = |saved: Saved, loaded: Loaded| {
            let mut node = Node::new();
            let lengths = vec![(Millis::new(8_700), stopped_until)];
            let gone_until = stopped_until;
            let memory = ClusterMemory { lengths, gone_until, ..ClusterMemory::default() };
            node.join_cluster(7, memory, CLOCKS.now);
            node.found(Some(Found::Present(saved)), CLOCKS, 7);
            let _ = node.begin(loaded, CAUTION).expect("it keeps a file");
            assert_eq!(node.longest(Millis::new(500), CLOCKS.now), Millis::new(8_700));
            let change = node.stop(CLOCKS.now, Census::new(CLOCKS.wall), true);
            let (mut saved, mut memory) = (saved, ClusterMemory::default());
            change.apply(&mut saved, &mut memory);
            let until = memory.gone_until.expect("it has stopped cleanly").as_millis();
            assert_eq!(memory.lengths.len(), 1, "after another clean stop too");
            Change::Begun.apply(&mut saved, &mut memory);
            let is_kept = memory.gone_until.is_some() || memory.lengths[0].1.is_some();
            assert!(!is_kept, "what a clean stop wrote does not hold after a crash");
            until
        };
        let master = loaded(1, false);
        let by = |now: Instant, wall| Loaded { clocks: Clocks { now, wall }, ..master };
        let Clocks { now, wall } = CLOCKS;
        let step = Millis::new(5_000);
        let nothing = until(Saved { stop: None, ..saved }, master);
        assert!(nothing < 9_000, "it crashed");
        assert_eq!(until(saved, master), 9_000);
        let other = Inventory { lock_count: 9, ..inventory };
        let ceilings = Ceilings { lease: Instant::from_millis(9_000), ..saved.ceilings };
        for (saved, loaded) in [
            (Saved { ceilings, ..saved }, Loaded { inventory: other, ..master }),
            (Saved { was_replica: true, ..saved }, master),
            (Saved { doubts: true, ..saved }, master),
            (saved, Loaded { boot: 8, ..master }),
            (saved, loaded(1, true)),
        ] {
            let until = until(saved, loaded);
            assert!(until < 9_000, "{saved:?} {loaded:?}: {until}");
        }
        // Regression: the clock of a machine that has resumed another's memory is another one,
        // though of the same boot. And the wall clock may be stepped. (No lease of its data set
        // stands, so it does not wait.)
        let ceilings = Ceilings { lease: Instant::default(), ..saved.ceilings };
        let saved = Saved { ceilings, ..saved };
        for (loaded, expected) in [
            (by(now.after(step), wall), 14_000),
            (by(now.before(step), wall), 9_000),
            (by(now, wall.after(step)), 9_000),
            (by(now, UnixTime::from_millis(wall.as_millis() - step.get())), 9_000),
        ] {
            assert_eq!(until(saved, loaded), expected, "{loaded:?}");
        }
    }

    /// What a first start writes.
    fn start_of(found: Found, loaded: Loaded) -> Saved {
        let mut node = Node::new();
        node.found(Some(found), CLOCKS, 7);
        node.begin(loaded, CAUTION).expect("it keeps a file").saved
    }

    #[test]
    fn what_is_saved_while_nothing_counts_is_marked() {
        let (last, after) = (Instant::from_millis(1_500), Instant::from_millis(1_501));
        let is_marked = |node: &Node, now| {
            node.as_saved(&held(), now).written_leases().all(|lease| lease.is_provisional)
        };
        for is_early in [false, true] {
            let mut node = node();
            if is_early {
                assert!(!is_marked(&node, CLOCKS.now));
                assert!(node.names_changed(CLOCKS.now).is_none(), "the wait is not known yet");
                assert!(is_marked(&node, CLOCKS.now), "the append-only file had the swap");
                begin(&mut node);
            } else {
                begin(&mut node);
                assert!(!is_marked(&node, CLOCKS.now), "what came back counts");
                assert!(node.names_changed(CLOCKS.now).is_some());
            }
            assert!(is_marked(&node, last));
            assert!(!is_marked(&node, after), "what was forgotten is over");
            let free = Lock::free(Fence::ZERO, CLOCKS.now);
            assert_eq!(*node.as_saved(&free, last), free, "there is nothing to mark");
        }
        let mut promoted = node();
        begin(&mut promoted);
        let _ = promoted.promoted(CLOCKS.now, Millis::new(500), CAUTION);
        assert!(is_marked(&promoted, last));
    }
}
