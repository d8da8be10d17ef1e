//! The slots of a Cluster: which slot a name is in, which master has which slots, and what masters
//! report to each other.
//!
//! A slot is the CRC16 of the name, or of the part of it between the first `{` and the next `}`
//! (the hash tag), modulo 16384.

use super::request::number;
use std::fmt;

use crate::engine::{
    ConfirmQuestion, Confirmation, Elector, Electorate, Electorates, Fence, Footing, LeaseLength,
    Millis, Passage, SLOTS, Shares, SlotAnswer, SlotRuns, Sure,
};

/// The slot of a name.
pub fn slot_of(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let tag = &name[open + 1..];
        let close = tag.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &tag[..close])
    });
    crc16(tag.unwrap_or(name)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ TABLE[usize::from(high ^ byte)]
    })
}

const TABLE: [u16; 256] = {
    const POLYNOMIAL: u16 = 0x1021;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Reads the reply to `CLUSTER NODES`. Parts that make no sense are skipped.
pub fn read_shares(text: &str) -> Shares {
    let mut shares = Shares::default();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(name), Some(flags)) = (words.next(), words.nth(1)) else { continue };
        let is = |flag: &str| flags.split(',').any(|given| given == flag);
        let is_own = is("myself");
        let mut ranges = Vec::new();
        // The master of a replica and two times come before the epoch, and the link after it.
        let epoch = words.nth(3).and_then(|word| word.parse().ok());
        for word in words.skip(1) {
            let inner = word.trim_matches(['[', ']']);
            let moving = |slot: &str, other: &str| {
                let slot = slot.parse().ok().filter(|slot| is_own && *slot < SLOTS)?;
                Some((slot, other.as_bytes().to_vec()))
            };
            if let Some((slot, source)) = inner.split_once("-<-") {
                shares.importing.extend(moving(slot, source));
            } else if let Some((slot, target)) = inner.split_once("->-") {
                shares.migrating.extend(moving(slot, target));
            } else if !word.starts_with('[') {
                ranges.extend(read_range(word));
            }
        }
        let name = name.as_bytes().to_vec();
        if is("master") && !is_own {
            shares.epochs.extend(epoch.map(|epoch| (name.clone(), epoch)));
        }
        if is_own {
            (shares.name, shares.own, shares.is_replica) = (name, ranges, is("slave"));
            shares.epoch = epoch.unwrap_or_default();
        } else if !ranges.is_empty() {
            shares.others.push((name, ranges));
        } else if is("master") {
            shares.idle.push(name);
        } else if is("slave") {
            shares.replicas.push(name);
        }
    }
    shares
}

/// Whether the node's own configuration epoch is higher than that of each other master, by the
/// reply to `CLUSTER NODES`.
pub fn has_highest_epoch(text: &str) -> bool {
    let epochs = |is_own: bool| {
        text.lines().filter_map(move |line| {
            let mut words = line.split(' ').skip(2);
            let flags: Vec<&str> = words.next()?.split(',').collect();
            let epoch: Option<u64> = words.nth(3)?.parse().ok();
            epoch.filter(|_| flags.contains(&"myself") == is_own && flags.contains(&"master"))
        })
    };
    epochs(true).max() > epochs(false).max()
}

fn read_range(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some((first, last))
}

/// What a master sends to others over the bus of the Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotMessage {
    /// A report to all: `lockmod floor left`.
    Report(Footing),
    /// To the other master of these slots, which must know of the move before the sender decides
    /// there: `lockmod ask number first-last ...`, while they are on their way; `ask-left`
    /// and `ask-at-once` when they have come.
    Question {
        /// Tells the sender when it asked.
        number: u64,
        /// How the slots have come.
        passage: Passage,
        /// The slots.
        slots: SlotRuns,
    },
    /// To all: whether they confirm which slots are the sender's: `lockmod confirm number since
    /// life longest digest`, perhaps what is remembered, and perhaps electorates.
    ConfirmQuestion(ConfirmQuestion),
    /// To who asked that: `lockmod confirmed number since first-last ... lost first-last ... digest
    /// life longest digest epoch`, perhaps `remembered longest:left ...`, and perhaps electorates:
    /// `electorates number:origin:name=life,... gone origin:name=life:number ...`, perhaps `ended
    /// origin:number ...`.
    Confirmation(Confirmation),
    /// To a master that asked: `lockmod floor left number up held sure first-last ...`; a `sure`
    /// with a minus has ended.
    Answer {
        /// The number of the question.
        number: u64,
        /// The rest.
        answer: SlotAnswer,
    },
}

/// The bus does not tell which module sent a message, so the message names it.
impl fmt::Display for SlotMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        match self {
            SlotMessage::Question { number, passage, .. } => {
                write!(f, " {} {number}", ask(*passage))?
            }
            SlotMessage::ConfirmQuestion(asked) => {
                let ConfirmQuestion { number, since, life, longest, digest, .. } = asked;
                write!(f, " {CONFIRM} {number} {since} {life} {} {digest}", longest.get())?;
            }
            SlotMessage::Confirmation(Confirmation { number, since, .. }) => {
                write!(f, " {CONFIRMED} {number} {since}")?
            }
            SlotMessage::Report(footing)
            | SlotMessage::Answer { answer: SlotAnswer { footing, .. }, .. } => {
                let Footing { floor, left } = footing;
                write!(f, " {floor} {}", left.get())?;
            }
        }
        if let SlotMessage::Answer { number, answer } = self {
            write!(f, " {number} {} {}", answer.up.get(), answer.held.get())?;
            match answer.sure {
                Sure::For(left) => write!(f, " {}", left.get())?,
                Sure::Ended(ago) => write!(f, " -{}", ago.get())?,
            }
        }
        match self {
            SlotMessage::Report(_) => Ok(()),
            SlotMessage::ConfirmQuestion(asked) => {
                write_remembered(f, &asked.remembered)?;
                write_electorates(f, &asked.electorates)
            }
            SlotMessage::Question { slots, .. }
            | SlotMessage::Answer { answer: SlotAnswer { slots, .. }, .. } => write_runs(slots, f),
            SlotMessage::Confirmation(told) => write_confirmation(f, told),
        }
    }
}

fn write_runs(slots: &SlotRuns, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    slots.iter().try_for_each(|(first, last)| write!(f, " {first}-{last}"))
}

fn write_confirmation(f: &mut fmt::Formatter<'_>, told: &Confirmation) -> fmt::Result {
    write_runs(&told.slots, f)?;
    write!(f, " {LOST}")?;
    write_runs(&told.lost, f)?;
    let Confirmation { life, longest, digest, epoch, .. } = told;
    write!(f, " {DIGEST} {life} {} {digest} {epoch}", longest.get())?;
    write_remembered(f, &told.remembered)?;
    write_electorates(f, &told.electorates)
}

fn write_remembered(f: &mut fmt::Formatter<'_>, all: &[LeaseLength]) -> fmt::Result {
    if !all.is_empty() {
        write!(f, " {REMEMBERED}")?;
    }
    all.iter().try_for_each(|LeaseLength { longest, left }| {
        write!(f, " {}:{}", longest.get(), left.get())
    })
}

/// Reads what [`write_remembered`] and [`write_electorates`] write, if they wrote anything. `None`
/// for anything else: another build may write it.
fn read_rest<'a>(
    words: impl Iterator<Item = &'a str>,
) -> Option<(Vec<LeaseLength>, Option<Electorates>)> {
    let mut words = words.peekable();
    let mut remembered = Vec::new();
    if words.next_if_eq(&REMEMBERED).is_some() {
        while let Some(word) = words.next_if(|word| *word != ELECTORATES) {
            let (longest, left) = word.split_once(':')?;
            let [longest, left] = [longest, left].map(|count| self::number(count.as_bytes()));
            let (longest, left) = (Millis::new(longest?), Millis::new(left?));
            remembered.push(LeaseLength { longest, left });
        }
    }
    match words.peek() {
        None => Some((remembered, None)),
        Some(_) => read_electorates(&mut words).map(|told| (remembered, Some(told))),
    }
}

fn write_electorates(f: &mut fmt::Formatter<'_>, told: &Option<Electorates>) -> fmt::Result {
    // The message has the sender's life, and the server says who that is.
    let Some(Electorates { known, gone, ended, .. }) = told else { return Ok(()) };
    write!(f, " {ELECTORATES}")?;
    let member = |one: &Elector| format!("{}={}", String::from_utf8_lossy(&one.name), one.life);
    for Electorate { number, origin, members } in known {
        let members: Vec<_> = members.iter().map(member).collect();
        write!(f, " {number}:{origin}:{}", members.join(","))?;
    }
    write!(f, " {GONE}")?;
    for (origin, forgotten) in gone {
        for (one, number) in forgotten {
            write!(f, " {origin}:{}:{number}", member(one))?;
        }
    }
    if !ended.is_empty() {
        write!(f, " {ENDED}")?;
    }
    ended.iter().try_for_each(|(origin, up_to)| write!(f, " {origin}:{up_to}"))
}

/// Reads what [`write_electorates`] writes; `None`: that is something else.
fn read_electorates<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Electorates> {
    words.next().filter(|word| *word == ELECTORATES)?;
    let mut told = Electorates::default();
    let member = |word: &str| {
        let (name, life) = word.split_once('=')?;
        Some(Elector { name: name.as_bytes().to_vec(), life: self::number(life.as_bytes())? })
    };
    for word in words.by_ref().take_while(|word| *word != GONE) {
        let mut parts = word.split(':');
        let mut count = || self::number(parts.next()?.as_bytes());
        let (number, origin) = (count()?, count()?);
        let members = parts.next()?.split(',').map(member).collect::<Option<_>>()?;
        told.known.insert(Electorate { number, origin, members });
    }
    for word in words.by_ref().take_while(|word| *word != ENDED) {
        let (origin, rest) = word.split_once(':')?;
        let (elector, number) = rest.split_once(':')?;
        let [origin, number] = [origin, number].map(|count| self::number(count.as_bytes()));
        told.gone.entry(origin?).or_default().insert(member(elector)?, number?);
    }
    for word in words {
        let (origin, up_to) = word.split_once(':')?;
        let [origin, up_to] = [origin, up_to].map(|count| self::number(count.as_bytes()));
        told.ended.insert(origin?, up_to?);
    }
    Some(told)
}

fn read_confirm_question<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<ConfirmQuestion> {
    let mut count = || self::number(words.next()?.as_bytes());
    let (number, since, life) = (count()?, count()?, count()?);
    let (longest, digest) = (Millis::new(count()?), count()?);
    let (remembered, electorates) = read_rest(words)?;
    Some(ConfirmQuestion { number, since, life, longest, digest, electorates, remembered })
}

fn read_confirmation<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Confirmation> {
    let mut count = || self::number(words.next()?.as_bytes());
    let (number, since) = (count()?, count()?);
    let slots = words.by_ref().take_while(|word| *word != LOST).filter_map(read_range).collect();
    let lost = words.by_ref().take_while(|word| *word != DIGEST).filter_map(read_range).collect();
    let mut count = || self::number(words.next()?.as_bytes());
    let (life, longest, digest) = (count()?, Millis::new(count()?), count()?);
    let epoch = count()?;
    let (remembered, electorates) = read_rest(words)?;
    Some(Confirmation {
        number,
        since,
        slots,
        lost,
        life,
        longest,
        epoch,
        digest,
        electorates,
        remembered,
    })
}

/// Reads a message of another master. `None` if the bytes are something else.
pub fn read_message(bytes: &[u8]) -> Option<SlotMessage> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut words = text.strip_prefix(PREFIX)?.strip_prefix(' ')?.split(' ');
    let count = |word: Option<&str>| number(word?.as_bytes());
    let first = words.next()?;
    if let Some(passage) = Passage::ALL.into_iter().find(|passage| ask(*passage) == first) {
        let number = count(words.next())?;
        let slots = words.filter_map(read_range).collect();
        return Some(SlotMessage::Question { number, passage, slots });
    }
    if first == CONFIRM {
        return read_confirm_question(words).map(SlotMessage::ConfirmQuestion);
    }
    if first == CONFIRMED {
        return read_confirmation(words).map(SlotMessage::Confirmation);
    }
    let floor = Fence::new(count(Some(first))?)?;
    let left = Millis::new(count(words.next())?);
    let footing = Footing { floor, left };
    let Some(number) = count(words.next()) else { return Some(SlotMessage::Report(footing)) };
    let length = |word| Some(Millis::new(count(word)?));
    let (up, held) = (length(words.next())?, length(words.next())?);
    let sure = words.next()?;
    let sure = match sure.strip_prefix('-') {
        Some(ago) => Sure::Ended(length(Some(ago))?),
        None => Sure::For(length(Some(sure))?),
    };
    let slots = words.filter_map(read_range).collect();
    Some(SlotMessage::Answer { number, answer: SlotAnswer { footing, up, held, sure, slots } })
}

const PREFIX: &str = "lockmod";
const CONFIRM: &str = "confirm";
const CONFIRMED: &str = "confirmed";
const LOST: &str = "lost";
const DIGEST: &str = "digest";
const REMEMBERED: &str = "remembered";
const ELECTORATES: &str = "electorates";
const GONE: &str = "gone";
const ENDED: &str = "ended";

/// The word of a question.
const fn ask(passage: Passage) -> &'static str {
    match passage {
        Passage::NotYet => "ask",
        Passage::BySteps => "ask-left",
        Passage::AtOnce => "ask-at-once",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_name_has_the_slot_that_the_server_says() {
        // By CLUSTER KEYSLOT.
        for (name, slot) in [
            ("", 0),
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("a{foo}{bar}", 12_182),
            ("foo{}", slot_of(b"foo{}")),
            ("{}foo", 9_500),
        ] {
            assert_eq!(slot_of(name.as_bytes()), slot, "{name}");
        }
        assert_ne!(slot_of(b"foo{}"), slot_of(b"foo"), "an empty tag does not count");
    }

    #[test]
    fn what_a_cluster_says_of_its_nodes_is_read() {
        let text = "\
aa 127.0.0.1:1@2,h myself,master - 0 0 3 connected 0-5 7 9-9 [10->-bb] [11-<-cc]
bb 127.0.0.1:3@4 master - 0 1 2 connected 100-200 [12-<-aa]
cc 127.0.0.1:3@4 slave bb 0 1 2 connected
dd :0@0 master,noaddr - 0 1 2 disconnected 300 16384 5-4 x
ee 127.0.0.1:5@6 master - 0 1 0 connected
ff 127.0.0.1:5@6 master - 7 0 0 connected
gg 127.0.0.1:5@6 master,fail? - 7 1 0 connected
hh 127.0.0.1:5@6 handshake - 7 0 0 disconnected

";
        let shares = read_shares(text);
        assert_eq!(shares.own, [(0, 5), (7, 7), (9, 9)]);
        assert_eq!(shares.importing, [(11, b"cc".to_vec())]);
        assert_eq!(shares.migrating, [(10, b"bb".to_vec())]);
        let others = [(b"bb".to_vec(), vec![(100, 200)]), (b"dd".to_vec(), vec![(300, 300)])];
        assert_eq!(shares.others, others);
        assert_eq!(shares.idle, [b"ee", b"ff", b"gg"]);
        assert!(!shares.is_replica);
        assert!(read_shares("aa 127.0.0.1:1@2 myself,slave bb 0 1 2 connected").is_replica);
    }

    #[test]
    fn an_epoch_is_the_highest_if_no_other_master_has_the_same() {
        let is_highest = |own: u64, other: u64, flags: &str| {
            let text = format!(
                "aa 127.0.0.1:1@2 myself,master - 0 0 {own} connected 0-5\n\
                 bb 127.0.0.1:3@4 {flags} - 0 1 {other} connected 100-200\n"
            );
            has_highest_epoch(&text)
        };
        assert!(is_highest(3, 2, "master"));
        assert!(!is_highest(3, 3, "master,fail") && !is_highest(3, 4, "master"));
        assert!(is_highest(3, 3, "slave"), "it has that of its master");
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_sent(
            floor in 0..=Fence::MAX.get(),
            (left, longest, number) in any::<(u64, u64, u64)>(),
            passage in 0..Passage::ALL.len(),
            slots in proptest::collection::vec((0..100_u16, 100..SLOTS), 0..4),
        ) {
            let (left, longest) = (Millis::new(left), Millis::new(longest));
            let footing = Footing { floor: Fence::new(floor).unwrap(), left };
            let sure = if number % 3 == 0 { Sure::Ended(left) } else { Sure::For(left) };
            let passage = Passage::ALL[passage];
            let name = |number: &(u16, u16)| format!("{:040x}", number.0).into_bytes();
            let member = |slot: &(u16, u16)| Elector { name: name(slot), life: left.get() };
            let members: BTreeSet<Elector> = slots.iter().map(member).collect();
            let gone = slots.iter().take(2).map(|slot| (member(slot), number));
            let gone = gone.map(|gone| (longest.get(), BTreeMap::from([gone]))).collect();
            let known = (0..members.len() as u64).map(|number| Electorate {
                number,
                origin: longest.get(),
                members: members.clone(),
            });
            let ended = slots.iter().skip(2).map(|_| (longest.get(), number)).collect();
            let known = known.collect();
            let electorates = Some(Electorates { known, gone, ended, ..Electorates::default() });
            let electorates = electorates.filter(|_| number % 2 == 0);
            let remembered: Vec<_> =
                slots.iter().skip(1).map(|_| LeaseLength { longest, left }).collect();
            for message in [
                SlotMessage::Report(footing),
                SlotMessage::Question { number, passage, slots: slots.clone() },
                SlotMessage::ConfirmQuestion(ConfirmQuestion {
                    number,
                    since: left.get(),
                    life: longest.get(),
                    longest,
                    digest: number,
                    electorates: electorates.clone(),
                    remembered: remembered.clone(),
                }),
                SlotMessage::Confirmation(Confirmation {
                    number,
                    since: left.get(),
                    slots: slots.clone(),
                    lost: slots.iter().take(1).copied().collect(),
                    life: left.get(),
                    longest,
                    epoch: longest.get(),
                    digest: number,
                    electorates: electorates.clone(),
                    remembered: remembered.clone(),
                }),
                SlotMessage::Answer {
                    number,
                    answer: SlotAnswer { footing, up: left, held: longest, sure, slots },
                },
            ] {
                let text = message.to_string();
                prop_assert_eq!(read_message(text.as_bytes()), Some(message));
                prop_assert_eq!(read_message(&text.as_bytes()[1..]), None);
            }
        }

        #[test]
        fn no_text_makes_the_reading_panic(text in "[a-z0-9 ,<>\\[\\]-]{0,80}") {
            let _ = (read_shares(&text), read_message(text.as_bytes()));
        }
    }
}
