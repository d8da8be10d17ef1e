//! The slots of a Cluster: which slot a name is in, which master has which slots, and what masters
//! report to each other.
//!
//! A slot is the CRC16 of the name, or of the part of it between the first `{` and the next `}`
//! (the hash tag), modulo 16384.

use super::request::number;
use crate::engine::{Fence, Footing, Millis, SLOTS, Shares};

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
        let is_own = flags.split(',').any(|flag| flag == "myself");
        let mut ranges = Vec::new();
        for word in words.skip(5) {
            if let Some((slot, source)) = word.trim_matches(['[', ']']).split_once("-<-") {
                let importing = slot.parse().ok().filter(|slot| is_own && *slot < SLOTS);
                shares.importing.extend(importing.map(|slot| (slot, source.as_bytes().to_vec())));
            } else if !word.starts_with('[') {
                ranges.extend(read_range(word));
            }
        }
        if is_own {
            shares.own = ranges;
        } else if !ranges.is_empty() {
            shares.others.push((name.as_bytes().to_vec(), ranges));
        }
    }
    shares
}

fn read_range(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some((first, last))
}

/// What a master reports to the others over the bus of the Cluster: `lockmod floor left`. The bus
/// does not tell which module sent a message, so the message names it.
pub fn footing(footing: Footing) -> String {
    format!("{PREFIX}{} {}", footing.floor, footing.left.get())
}

/// Reads a master's report. `None` if the bytes are something else. A later build may add to it.
pub fn read_footing(bytes: &[u8]) -> Option<Footing> {
    let mut words = bytes.strip_prefix(PREFIX.as_bytes())?.split(|&byte| byte == b' ').map(number);
    let floor = Fence::new(words.next()??)?;
    Some(Footing { floor, left: Millis::new(words.next()??) })
}

const PREFIX: &str = "lockmod ";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

";
        let shares = read_shares(text);
        assert_eq!(shares.own, [(0, 5), (7, 7), (9, 9)]);
        assert_eq!(shares.importing, [(11, b"cc".to_vec())]);
        let others = [(b"bb".to_vec(), vec![(100, 200)]), (b"dd".to_vec(), vec![(300, 300)])];
        assert_eq!(shares.others, others);
    }

    proptest! {
        #[test]
        fn a_standing_is_read_as_it_was_told(floor in 0..=Fence::MAX.get(), left: u64) {
            let told = Footing { floor: Fence::new(floor).unwrap(), left: Millis::new(left) };
            let text = footing(told);
            prop_assert_eq!(read_footing(text.as_bytes()), Some(told));
            let later = format!("{text} 7");
            prop_assert_eq!(read_footing(later.as_bytes()), Some(told), "of a later build");
            prop_assert_eq!(read_footing(&text.as_bytes()[1..]), None);
        }

        #[test]
        fn no_text_makes_the_reading_panic(text in "[a-z0-9 ,<>\\[\\]-]{0,80}") {
            let _ = (read_shares(&text), read_footing(text.as_bytes()));
        }
    }
}
