//! The questions by which a master has its slots confirmed, and the answers of those who have a
//! vote. docs/design.md, "Slots that move", rules 10 and 11.

use super::Node;
use super::confirmations::CONFIRM_DELAY;
use super::electorate::{Elector, Electorates};
use super::shares::{ConfirmQuestion, Confirmation, LeaseLength, question_number};
use super::slots::Slots;
use super::unconfirmed::Unconfirmed;
use crate::engine::{Instant, Millis};

impl Slots {
    /// Takes a master's confirmation.
    fn confirmed(&mut self, name: &[u8], told: &Confirmation, now: Instant) {
        let [at, since] = [told.number, told.since].map(|number| self.asked_at(number, now));
        let (Some(at), Some(since)) = (at, since) else { return };
        let elector = Elector { name: name.to_vec(), life: told.life };
        let electorates = (told.electorates.as_ref(), told.digest);
        self.lengths.learn(&told.remembered, now);
        if self.hear_of(&elector, electorates, now) {
            self.confirmations.confirmed(&elector, (at, since), told, now);
            self.compare(now);
        }
    }

    /// Takes the electorates that another master knows, as in [`Confirmations::hear`]. If they show
    /// that this one has lost its state file, it does not know what it did before.
    fn hear_of(
        &mut self,
        elector: &Elector,
        (told, digest): (Option<&Electorates>, u64),
        now: Instant,
    ) -> bool {
        if told.is_some_and(|told| self.confirmations.shows_another_life(told)) {
            self.table.doubt_since_first_look(now);
        }
        self.confirmations.hear(elector, (told, digest), now)
    }

    /// Notes what another master's question says of its leases, and of those of others.
    fn remember(&mut self, asked: &ConfirmQuestion, now: Instant) {
        self.lengths.learn(&asked.remembered, now);
        self.lengths.hear(asked.longest, now);
    }

    /// What a message tells of what is remembered: all, if those who hear it may come to count by
    /// another electorate than those who remember it. `tells`: the message has electorates, or
    /// nobody else remembers it.
    fn remembered(&self, tells: bool, now: Instant) -> Vec<LeaseLength> {
        let is_to_tell = tells || !self.confirmations.electorates().are_settled();
        if is_to_tell { self.lengths.tell(now) } else { Vec::new() }
    }

    /// Notes how long a lease of this node may be, which its next question says. This node
    /// remembers it too: its own vote counts for itself.
    fn allow(&mut self, longest: Millis, now: Instant) {
        self.confirmations.allow(longest, now);
        self.lengths.hear(longest, now);
    }
}

impl Node {
    /// The question to all other masters, whether they confirm which slots are this node's, if it
    /// is due.
    pub fn confirm_question(&mut self, now: Instant, max_ttl: Millis) -> Option<ConfirmQuestion> {
        let longest = self.own_longest(max_ttl, now);
        let slots = self.slots.as_mut().filter(|slots| slots.confirmations.has_slots())?;
        slots.allow(longest, now);
        let is_hurried = slots.is_hurried(now) || !slots.confirmations.know_of(longest, now);
        let (since, digest, electorates) = slots.confirmations.ask(is_hurried, now)?;
        let [number, since] = [now, since].map(|at| question_number(slots.boot, at));
        let life = slots.confirmations.electorates().itself.life;
        let tells = electorates.is_some() || slots.confirmations.is_alone();
        let remembered = slots.remembered(tells, now);
        Some(ConfirmQuestion { number, since, life, longest, digest, electorates, remembered })
    }

    /// Notes that the last question was not sent: nobody has heard what it said.
    pub fn question_unsent(&mut self) {
        if let Some(slots) = &mut self.slots {
            slots.confirmations.unsent();
        }
    }

    /// Whether the last look is recent enough to [confirm](Node::confirm) by it.
    pub fn has_just_looked(&self, now: Instant) -> bool {
        let is_fresh = |slots: &Slots| slots.pauses.hang.has_looked_within(CONFIRM_DELAY, now);
        self.slots.as_ref().is_some_and(|slots| is_fresh(slots))
    }

    /// Whether this server is to look at its slots and others even as a replica: it must notice if
    /// it is told to forget one that has a vote, and that it is in a Cluster again after it has
    /// left one.
    pub fn must_look(&self) -> bool {
        let knows_any = |it: &Electorates| !it.known.is_empty() || !it.ended.is_empty();
        self.electorates().is_some_and(|it| knows_any(it) || !it.left.is_empty())
    }

    /// Whether this server is to answer this question even as a replica: it may have a vote, as it
    /// knows or the question says; or it does not know the same electorates, which it must when it
    /// takes the place of a master.
    pub fn answers(&self, asked: &ConfirmQuestion) -> bool {
        let Some(known) = self.electorates() else { return false };
        let told = asked.electorates.iter().flat_map(|told| &told.known);
        known.has_vote_in(known.known.iter().chain(told)) || known.digest() != asked.digest
    }

    /// Answers another master's question for confirmation, just after the node has looked at its
    /// own slots; `None` if it has not yet since its start. It is not to be sent before the state
    /// file has the [news](Node::news_of_slots).
    pub fn confirm(
        &mut self,
        name: &[u8],
        asked: &ConfirmQuestion,
        now: Instant,
    ) -> Option<Confirmation> {
        let slots = self.slots.as_mut().filter(|slots| slots.table.looked_at().is_some())?;
        let elector = Elector { name: name.to_vec(), life: asked.life };
        slots.remember(asked, now);
        slots.hear_of(&elector, (asked.electorates.as_ref(), asked.digest), now);
        slots.compare(now);
        self.wait_for_others(now);
        let slots = self.slots.as_mut()?;
        let number = asked.number;
        let (its, lost, since) = slots.witness.confirm(name, (number, asked.since));
        let known = slots.confirmations.electorates();
        let (life, digest) = (known.itself.life, known.digest());
        let electorates = (digest != asked.digest).then(|| known.clone());
        let (longest, epoch) = (slots.lengths.longest(now), slots.witness.epoch_of(name));
        let remembered = slots.remembered(electorates.is_some(), now);
        Some(Confirmation {
            number,
            since,
            slots: its,
            lost,
            life,
            longest,
            epoch,
            digest,
            electorates,
            remembered,
        })
    }

    /// Takes another master's question without an answer: this server has no vote, but may take the
    /// place of a master. The state file is to have the [news](Node::news_of_slots).
    pub fn overhear(&mut self, name: &[u8], asked: &ConfirmQuestion, now: Instant) {
        if let Some(slots) = &mut self.slots {
            slots.remember(asked, now);
            let elector = Elector { name: name.to_vec(), life: asked.life };
            slots.confirmations.succession().note_life(&elector);
        }
    }

    /// Takes another master's confirmation.
    pub fn confirmed(&mut self, name: &[u8], told: &Confirmation, now: Instant) {
        if let Some(slots) = &mut self.slots {
            slots.confirmed(name, told, now);
        }
        self.wait_for_others(now);
    }

    /// Why most masters do not confirm the slots of this one, if it has decided nowhere for some
    /// seconds: once, and when the reason has changed.
    pub fn news_of_unconfirmed(&mut self, now: Instant) -> Option<Unconfirmed> {
        self.slots.as_mut().and_then(|own| own.confirmations.news_of_unconfirmed(now))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster_memory::ClusterMemory;
    use super::*;
    use crate::engine::Electorate;

    /// Regressions: who knew that others knew the same electorates did not tell what it remembered,
    /// and they went over to the next one, or began the first, without it.
    #[test]
    fn what_is_remembered_is_told_while_another_electorate_may_come_to_count() {
        let now = Instant::default();
        let tells = |numbers: &[(u64, u64)]| {
            let elector = |name: &[u8]| Elector { name: name.to_vec(), life: 1 };
            let itself = elector(b"aa");
            let electorate = |&(number, origin)| {
                let others = (number > 0).then(|| elector(b"bb"));
                let members = others.into_iter().chain([itself.clone()]).collect();
                Electorate { number, origin, members }
            };
            let known = numbers.iter().map(electorate).collect();
            let longest = Millis::new(9_000);
            let memory = ClusterMemory {
                electorates: Electorates { itself: itself.clone(), known, ..Default::default() },
                lengths: vec![(longest, None)],
                ..ClusterMemory::default()
            };
            let mut node = Node::new();
            node.join_cluster(7, memory, now);
            let slots = node.slots.as_ref().expect("it is in a Cluster");
            [false, true].map(|has_electorates| slots.remembered(has_electorates, now).len())
        };
        assert_eq!(tells(&[]), [1, 1], "it may begin");
        assert_eq!(tells(&[(0, 0)]), [1, 1], "a replica may take the place of the only master");
        assert_eq!(tells(&[(1, 5)]), [0, 1]);
        assert_eq!(tells(&[(1, 5), (2, 5)]), [1, 1]);
    }
}
