//! The renewal against its promises, by story and by random answers.

use proptest::prelude::*;

use super::*;

const START: Instant = Instant::from_millis(10_000);

fn at(millis: u64) -> Instant {
    START.after(Millis::new(millis))
}

fn renewal(max_hold: Option<u64>) -> Renewal {
    let schedule = Schedule {
        every: Some(Millis::new(300)),
        margin: Millis::new(100),
        max_hold: max_hold.map(Millis::new),
    };
    let terms = Terms::new(Millis::new(1_000));
    Renewal::new(Quorum::of(3).unwrap(), terms, schedule, START, terms.ends_at(START))
}

fn begin(renewal: &mut Renewal, now: u64) -> RoundNumber {
    renewal.begin(at(now), at(now)).unwrap()
}

const CONFIRMED: RenewalStep = RenewalStep::Confirmed { repair: NodeSet::EMPTY };

#[test]
fn a_quorum_prolongs_from_before_the_extend_was_sent() {
    let mut renewal = renewal(None);
    assert_eq!(renewal.due(at(0)), Due::At(at(300)));
    assert_eq!(renewal.due(at(300)), Due::Now);
    let round = begin(&mut renewal, 300);
    assert_eq!(renewal.answer(round, 0, Extension::Extended, at(310)), RenewalStep::Wait);
    assert_eq!(renewal.ends_at(), at(988));
    assert_eq!(renewal.answer(round, 1, Extension::Extended, at(390)), CONFIRMED);
    assert_eq!(renewal.ends_at(), at(1_288));
    assert_eq!(renewal.due(at(390)), Due::At(at(600)));
}

#[test]
fn failed_renewal_keeps_the_lease_and_tries_again_sooner() {
    let mut renewal = renewal(None);
    let round = begin(&mut renewal, 300);
    assert_eq!(renewal.answer(round, 0, Extension::Extended, at(310)), RenewalStep::Wait);
    assert_eq!(renewal.time_out(round, at(400)), RenewalStep::Failed);
    assert_eq!(renewal.validity(at(400)), Millis::new(588));
    assert_eq!(renewal.due(at(400)), Due::At(at(475)));
    let again = begin(&mut renewal, 475);
    assert_eq!(renewal.answer(round, 1, Extension::Extended, at(480)), RenewalStep::Wait, "old");
    assert_eq!(renewal.answer(again, 1, Extension::Extended, at(480)), RenewalStep::Wait);
    assert_eq!(renewal.answer(again, 2, Extension::Extended, at(480)), CONFIRMED);
}

#[test]
fn a_holder_whose_validity_has_ended_is_done() {
    let mut renewal = renewal(None);
    let round = begin(&mut renewal, 800);
    let _ = renewal.answer(round, 0, Extension::Extended, at(850));
    let lost = RenewalStep::Lost(Ending::Expired);
    assert_eq!(renewal.answer(round, 1, Extension::Extended, at(888)), lost);
    assert_eq!(renewal.begin(at(889), at(889)), None);
    assert_eq!(renewal.due(at(889)), Due::Never);
    assert_eq!(renewal.validity(at(889)), Millis::ZERO);
    assert!(renewal.release(), "only the release is left");
}

#[test]
fn lost_stays_lost_once_somebody_was_told() {
    let mut renewal = renewal(None);
    let round = begin(&mut renewal, 800);
    assert_eq!(renewal.ending(at(887)), None);
    assert_eq!(renewal.ending(at(888)), Some(Ending::Expired));
    for node in 0..3 {
        let step = renewal.answer(round, node, Extension::Extended, at(800));
        assert!(!matches!(step, RenewalStep::Confirmed { .. }), "{step:?}");
    }
    assert_eq!(renewal.ending(at(800)), Some(Ending::Expired));
}

#[test]
fn nodes_that_forgot_are_repaired_only_after_a_quorum_confirmed() {
    let mut renewal = renewal(None);
    let round = begin(&mut renewal, 300);
    assert_eq!(renewal.answer(round, 0, Extension::NotHeld, at(301)), RenewalStep::Wait);
    assert_eq!(renewal.answer(round, 1, Extension::Extended, at(302)), RenewalStep::Wait);
    let repair = NodeSet::of(0);
    let step = renewal.answer(round, 2, Extension::Extended, at(303));
    assert_eq!(step, RenewalStep::Confirmed { repair });
}

#[test]
fn a_late_quarantine_answer_is_repaired_too_and_another_holder_is_not() {
    let mut renewal = renewal(None);
    let round = begin(&mut renewal, 300);
    let _ = renewal.answer(round, 0, Extension::Extended, at(301));
    let _ = renewal.answer(round, 1, Extension::Extended, at(301));
    let mut other = renewal;
    let repair = NodeSet::of(2);
    let step = renewal.answer(round, 2, Extension::Quarantined, at(302));
    assert_eq!(step, RenewalStep::Confirmed { repair });
    assert_eq!(other.answer(round, 2, Extension::HeldByAnother, at(302)), CONFIRMED);
}

#[test]
fn a_lock_removed_from_a_quorum_is_lost_at_once_and_not_repaired() {
    let mut renewal = renewal(None);
    let round = begin(&mut renewal, 300);
    assert_eq!(renewal.answer(round, 0, Extension::NotHeld, at(301)), RenewalStep::Wait);
    let lost = RenewalStep::Lost(Ending::Removed);
    assert_eq!(renewal.answer(round, 1, Extension::HeldByAnother, at(301)), lost);
    assert_eq!(renewal.ending(at(301)), Some(Ending::Removed));
}

#[test]
fn a_quorum_in_quarantine_fails_the_renewal_and_loses_nothing() {
    let mut renewal = renewal(None);
    let round = begin(&mut renewal, 300);
    assert_eq!(renewal.answer(round, 0, Extension::Quarantined, at(301)), RenewalStep::Wait);
    assert_eq!(renewal.answer(round, 1, Extension::Quarantined, at(301)), RenewalStep::Failed);
    assert_eq!(renewal.ending(at(301)), None);
}

#[test]
fn max_hold_ends_the_validity_and_the_renewing() {
    let mut renewal = renewal(Some(1_100));
    let round = begin(&mut renewal, 300);
    let _ = renewal.answer(round, 0, Extension::Extended, at(301));
    assert_eq!(renewal.answer(round, 1, Extension::Extended, at(301)), CONFIRMED);
    assert_eq!(renewal.ends_at(), at(1_100));
    assert_eq!(renewal.due(at(700)), Due::At(at(1_000)), "nothing to gain");
    assert_eq!(renewal.ending(at(1_000)), Some(Ending::MaxHold));
}

#[test]
fn nothing_begins_after_the_release() {
    let mut renewal = renewal(None);
    let round = begin(&mut renewal, 300);
    assert!(renewal.release());
    assert!(!renewal.release(), "once");
    assert_eq!(renewal.begin(at(301), at(301)), None);
    assert_eq!(renewal.due(at(301)), Due::Never);
    assert_eq!(renewal.answer(round, 0, Extension::NotHeld, at(302)), RenewalStep::Wait);
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Begin,
    Answer(usize, Extension),
    TimeOut,
    Look,
    Release,
}

fn events() -> impl Strategy<Value = Vec<(Event, u64)>> {
    let extension = prop_oneof![
        5 => Just(Extension::Extended),
        1 => Just(Extension::HeldByAnother),
        1 => Just(Extension::NotHeld),
        1 => Just(Extension::Quarantined),
        1 => Just(Extension::Unknown),
    ];
    let event = prop_oneof![
        4 => Just(Event::Begin),
        12 => (0usize..3, extension).prop_map(|(node, answer)| Event::Answer(node, answer)),
        1 => Just(Event::TimeOut),
        1 => Just(Event::Look),
        1 => Just(Event::Release),
    ];
    prop::collection::vec((event, 0u64..150), 0..60)
}

proptest! {
    /// The naive reference: the validity is the largest (start of a round + ttl - drift) of those
    /// rounds that a quorum confirmed before the validity, less the margin, had ended.
    #[test]
    fn the_validity_rests_on_a_quorum_that_confirmed_in_time(events in events()) {
        let mut renewal = renewal(None);
        let (mut now, mut ends, mut is_over) = (0, 988, false);
        let (mut round, mut started, mut yes) = (None, 0, NodeSet::EMPTY);
        let mut answered = NodeSet::EMPTY;
        for (event, later) in events {
            now += later;
            let is_late = now + 100 >= ends;
            match event {
                Event::Begin => {
                    let begun = renewal.begin(at(now), at(now));
                    is_over |= is_late;
                    prop_assert_eq!(begun.is_some(), !is_over);
                    if begun.is_some() {
                        (round, started) = (begun, now);
                        (yes, answered) = (NodeSet::EMPTY, NodeSet::EMPTY);
                    }
                }
                Event::Answer(node, answer) => {
                    let Some(round) = round else { continue };
                    let step = renewal.answer(round, node, answer, at(now));
                    if !answered.has(node) && !is_over && !is_late {
                        if answer == Extension::Extended { yes.insert(node); }
                        if !matches!(answer, Extension::Unknown | Extension::Quarantined) { answered.insert(node); }
                        if yes.len() >= 2 { ends = ends.max(started + 988); }
                    }
                    if let RenewalStep::Confirmed { .. } = step {
                        prop_assert!(yes.len() >= 2 && !is_over && !is_late);
                    }
                    is_over |= matches!(step, RenewalStep::Lost(_));
                }
                Event::TimeOut => {
                    let Some(round) = round else { continue };
                    is_over |= matches!(renewal.time_out(round, at(now)), RenewalStep::Lost(_));
                }
                Event::Look => is_over |= renewal.ending(at(now)).is_some(),
                Event::Release => { renewal.release(); is_over = true; }
            }
            prop_assert_eq!(renewal.ends_at(), at(ends));
            if is_over {
                prop_assert!(renewal.validity(at(now)).is_zero());
                prop_assert_eq!(renewal.due(at(now)), Due::Never);
            }
        }
    }
}
