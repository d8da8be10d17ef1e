//! `LOCK.INFO`: what a node reports about a lock. Each field is defined here once, for both sides.
//!
//! To add one: in this file, a line in `FIELDS`, their `COUNT`, the numbers in `written!`, and a
//! field of [`LockInfo`], an `Option` if a node that does not report it is not the same as zero; in
//! the engine, a field of [`LockAccount`], which `account.rs` fills. If a lease has to keep
//! something new for it: `flags` in `packed_lease.rs` says how. If the command's work grows with
//! something new, also its `complexity` in `spec.rs`.
//!
//! For people, also: docs/commands.md (and the reply in `spec.rs`), CHANGELOG.md, and the output of
//! `lockmod info` in words and as JSON (`src/cli/locks.rs`). For the output of a survey
//! (`src/cli/rows.rs`, `status.rs`): nodes may differ, so `LockSurvey` in `src/client/survey.rs`
//! says whose report counts. The packages for other languages choose their fields themselves
//! (`packages/host/src/settings.rs`). `tests/node/commands.rs` and `server_rules.rs` compare whole
//! replies, with the fields that are always present.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::outcome::{Unread, number_of};
use super::resp::Reply;
use crate::engine::{Fence, LockAccount, LockState, Millis, Uncounted};

/// What a node reports about a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Whether it is held.
    pub state: LockState,
    /// The highest fence issued.
    pub fence: Fence,
    /// How long the lease lasts unless it is extended.
    pub left: Option<Duration>,
    /// The holder's label. Bytes that are not UTF-8 are replaced by `U+FFFD`.
    pub label: Option<String>,
    /// The label's bytes, if they are not UTF-8.
    pub raw_label: Option<Vec<u8>>,
    /// How long it has been held.
    pub held_for: Option<Duration>,
    /// How many readers hold it; zero if a writer or nobody holds it.
    pub readers: u64,
    /// The labels of those readers who have held it longest. The first of them is also the `label`.
    pub reader_labels: Vec<String>,
    /// How many wait for it in line.
    pub waiters: u64,
    /// How many of them wait as readers.
    pub waiting_readers: u64,
    /// How long the first of them has been waiting.
    pub first_waiting: Option<Duration>,
    /// How much longer the quarantine lasts.
    pub quarantine_left: Option<Duration>,
    /// The reason for the quarantine.
    pub quarantine_reason: Option<String>,
    /// Why the node grants nothing at all: a code word, and a text.
    pub node_state: Option<String>,
    /// Set if an extension of the lease would not count towards a quorum.
    pub uncounted: Option<Uncounted>,
}

impl LockInfo {
    /// How many wait as writers.
    pub fn waiting_writers(&self) -> u64 {
        self.waiters.saturating_sub(self.waiting_readers)
    }
}

/// One field: its name, the value that a node writes (`None`: it leaves the field out), and how to
/// read it.
#[derive(Clone, Copy)]
struct Field {
    name: &'static str,
    write: fn(&LockAccount) -> Option<FieldValue<'_>>,
    read: fn(&mut LockInfo, &Reply),
}

/// What a node writes in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// Nothing is known, or there is nothing.
    Nil,
    /// A number.
    Number(i64),
    /// A text.
    Text(&'a [u8]),
    /// Several texts.
    Texts(&'a [Vec<u8>]),
}

impl From<FieldValue<'_>> for Reply {
    fn from(value: FieldValue<'_>) -> Reply {
        match value {
            FieldValue::Nil => Reply::Nil,
            FieldValue::Number(number) => Reply::Integer(number),
            FieldValue::Text(text) => Reply::Text(Cow::Owned(text.to_vec())),
            FieldValue::Texts(texts) => {
                Reply::List(texts.iter().map(|text| FieldValue::Text(text).into()).collect())
            }
        }
    }
}

/// How many fields there are.
const COUNT: usize = 14;

/// The fields, in the order in which they are written.
const FIELDS: [Field; COUNT] = [
    Field {
        name: STATE,
        write: |account| Some(text(word_of(account.state))),
        read: |info, value| info.state = state_of(value).unwrap_or_default(),
    },
    Field {
        name: FENCE,
        write: |account| Some(FieldValue::Number(account.fence.get().cast_signed())),
        read: |info, value| {
            info.fence = value.number().and_then(Fence::new).unwrap_or_default();
        },
    },
    Field {
        name: "ttl_left_ms",
        write: |account| Some(of_length(account.left)),
        read: |info, value| info.left = length(value),
    },
    Field {
        name: "label",
        write: |account| Some(account.label.as_deref().map_or(FieldValue::Nil, FieldValue::Text)),
        read: |info, value| {
            info.label = line(value);
            let is_raw = |label: &&[u8]| std::str::from_utf8(label).is_err();
            info.raw_label = value.text().filter(is_raw).map(<[u8]>::to_vec);
        },
    },
    Field {
        name: "held_for_ms",
        write: |account| Some(of_length(account.held_for)),
        read: |info, value| info.held_for = length(value),
    },
    Field {
        name: "readers",
        write: |account| {
            let readers = account.readers.as_ref()?;
            Some(FieldValue::Number(readers.count.cast_signed()))
        },
        read: |info, value| info.readers = value.number().unwrap_or_default(),
    },
    Field {
        name: "reader_labels",
        write: |account| account.readers.as_ref().map(|readers| FieldValue::Texts(&readers.labels)),
        read: |info, value| info.reader_labels = lines(value),
    },
    Field {
        name: "waiters",
        write: |account| Some(FieldValue::Number(account.waiters.cast_signed())),
        read: |info, value| info.waiters = value.number().unwrap_or_default(),
    },
    Field {
        name: "waiting_readers",
        write: |account| {
            let count = account.waiting_readers;
            (count > 0).then_some(FieldValue::Number(count.cast_signed()))
        },
        read: |info, value| info.waiting_readers = value.number().unwrap_or_default(),
    },
    Field {
        name: "first_waiting_ms",
        write: |account| Some(account.first_waiting.map_or(FieldValue::Nil, of_length)),
        read: |info, value| info.first_waiting = length(value),
    },
    Field {
        name: "quarantine_left_ms",
        write: |account| account.quarantine.map(|(left, _)| of_length(left)),
        read: |info, value| info.quarantine_left = length(value),
    },
    Field {
        name: "quarantine_reason",
        write: |account| account.quarantine.map(|(_, reason)| text(reason.text())),
        read: |info, value| info.quarantine_reason = line(value),
    },
    Field {
        name: "node_state",
        write: |account| account.obstacle.as_deref().map(text),
        read: |info, value| info.node_state = line(value),
    },
    Field {
        name: "extension",
        write: |account| {
            account.uncounted.map(|uncounted| FieldValue::Number(number_of(uncounted)))
        },
        read: |info, value| {
            let is_told = |one: &Uncounted| value.number() == number_of(*one).try_into().ok();
            info.uncounted = Uncounted::ALL.into_iter().find(is_told);
        },
    },
];

/// The name of the fence's field.
const FENCE: &str = "fence";

/// The name of the state's field.
const STATE: &str = "state";

/// A lock's state in one word.
const fn word_of(state: LockState) -> &'static str {
    match state {
        LockState::Free => "free",
        LockState::Held => "held",
        LockState::Reserved => "reserved",
    }
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word_of(*self))
    }
}

fn state_of(value: &Reply) -> Option<LockState> {
    let word = value.text()?;
    LockState::ALL.into_iter().find(|state| word_of(*state).as_bytes() == word)
}

/// The names of the fields, in the order in which they are written.
pub fn field_names() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|field| field.name)
}

/// What a node reports about a lock, field by field; `None`: it leaves the field out.
///
/// A server sends the fields as they are: to build a reply from them first would cost more
/// instructions than everything else that it does with them.
#[inline]
pub fn fields(account: &LockAccount) -> [Option<(&'static str, FieldValue<'_>)>; COUNT] {
    // A loop would call each function through its pointer.
    macro_rules! written {
        ($($place:literal)*) => {
            [$({
                const FIELD: Field = FIELDS[$place];
                (FIELD.write)(account).map(|value| (FIELD.name, value))
            }),*]
        };
    }
    written!(0 1 2 3 4 5 6 7 8 9 10 11 12 13)
}

/// The reply to `LOCK.INFO`.
pub fn write(account: &LockAccount) -> Reply {
    let word = |name: &'static str| Reply::Text(Cow::Borrowed(name.as_bytes()));
    let fields = fields(account).into_iter().flatten();
    Reply::Map(fields.map(|(name, value)| (word(name), value.into())).collect())
}

/// Reads the reply to `LOCK.INFO`. Fields that only a newer node has are ignored.
///
/// # Errors
/// [`Unread`] if the reply is something else.
pub fn read(reply: &Reply) -> Result<LockInfo, Unread<'_>> {
    if let Reply::Error(text) = reply {
        return Err(Unread::Error(text));
    }
    let pairs = reply.pairs().ok_or(Unread::Garbled("a reply of another kind"))?;
    let state = pairs.iter().find(|(name, _)| name.text() == Some(STATE.as_bytes()));
    if state.and_then(|(_, state)| state_of(state)).is_none() {
        return Err(Unread::Garbled("a description without a state"));
    }
    let mut info = LockInfo::default();
    for (name, value) in pairs {
        let Some(name) = name.text() else { continue };
        if name == FENCE.as_bytes() && value.number().and_then(Fence::new).is_none() {
            return Err(Unread::Garbled("a description with a fence out of bounds"));
        }
        if let Some(field) = FIELDS.iter().find(|field| field.name.as_bytes() == name) {
            (field.read)(&mut info, value);
        }
    }
    Ok(info)
}

const fn text(text: &str) -> FieldValue<'_> {
    FieldValue::Text(text.as_bytes())
}

fn of_length(length: Millis) -> FieldValue<'static> {
    FieldValue::Number(i64::try_from(length.get()).unwrap_or(i64::MAX))
}

fn length(value: &Reply) -> Option<Duration> {
    value.number().map(Duration::from_millis)
}

/// A text, unless it is empty.
fn line(value: &Reply) -> Option<String> {
    value.text().filter(|text| !text.is_empty()).map(lossy)
}

/// The texts of a list that are not empty.
fn lines(value: &Reply) -> Vec<String> {
    match value {
        Reply::List(texts) => texts.iter().filter_map(line).collect(),
        _ => Vec::new(),
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{QuarantineReason, ReadersAccount};
    use proptest::prelude::*;

    fn accounts() -> impl Strategy<Value = LockAccount> {
        let length = || (0..1_u64 << 53).prop_map(Millis::new);
        let quarantine = proptest::option::of(length())
            .prop_map(|left| left.map(|left| (left, QuarantineReason::Promotion)));
        let label = proptest::collection::vec(any::<u8>(), 1..9);
        let labels = proptest::collection::vec("[a-z]{1,5}".prop_map(String::into_bytes), 0..3);
        let readers =
            (1..9_u64, labels).prop_map(|(count, labels)| ReadersAccount { count, labels });
        let uncounted = proptest::option::of(proptest::sample::select(&Uncounted::ALL[..]));
        let readers = (proptest::option::of(readers), 0..3_u64, uncounted);
        (
            (0..LockState::ALL.len(), 0..=Fence::MAX.get(), length()),
            (proptest::option::of(label), length(), 0..99_u64),
            (proptest::option::of(length()), quarantine, proptest::option::of("[A-Z]{1,9} x")),
            readers,
        )
            .prop_map(
                |((state, fence, left), (label, held_for, waiters), rest, readers)| LockAccount {
                    readers: readers.0,
                    waiting_readers: readers.1,
                    uncounted: readers.2,
                    state: LockState::ALL[state],
                    fence: Fence::new(fence).unwrap(),
                    left,
                    label,
                    held_for,
                    waiters,
                    first_waiting: rest.0,
                    quarantine: rest.1,
                    obstacle: rest.2,
                },
            )
    }

    proptest! {
        #[test]
        fn what_is_told_is_read(account in accounts()) {
            let is_raw = |label: &[u8]| std::str::from_utf8(label).is_err();
            let info = LockInfo {
                state: account.state,
                fence: account.fence,
                left: Some(account.left.into()),
                label: account.label.as_deref().map(lossy),
                raw_label: account.label.clone().filter(|label| is_raw(label)),
                held_for: Some(account.held_for.into()),
                readers: account.readers.as_ref().map_or(0, |readers| readers.count),
                reader_labels: account.readers.iter().flat_map(|readers| &readers.labels)
                    .map(|label| lossy(label)).collect(),
                waiting_readers: account.waiting_readers,
                waiters: account.waiters,
                first_waiting: account.first_waiting.map(Duration::from),
                quarantine_left: account.quarantine.map(|(left, _)| left.into()),
                quarantine_reason: account.quarantine.map(|(_, reason)| reason.to_string()),
                node_state: account.obstacle.clone(),
                uncounted: account.uncounted,
            };
            let told = write(&account);
            prop_assert_eq!(read(&told), Ok(info));
        }
    }

    #[test]
    fn a_description_is_read_from_a_list_too_and_has_a_state() {
        let text = |text: &str| Reply::from(super::text(text));
        let field = |name, value| [text(name), value];
        let held = field("state", text("held"));
        let rest = [field("ttl_left_ms", Reply::Integer(1_500)), field("new field", Reply::Nil)];
        let list = Reply::List([held].into_iter().chain(rest).flatten().collect());
        let info = read(&list).unwrap();
        assert_eq!(info.state, LockState::Held);
        assert_eq!(info.left, Some(Duration::from_millis(1_500)));
        for other in [text("unheard of"), Reply::Nil] {
            assert!(read(&Reply::List(field("state", other).to_vec())).is_err());
        }
        assert!(read(&Reply::List(vec![])).is_err());
        assert_eq!(read(&Reply::Error("NOPERM x".into())), Err(Unread::Error("NOPERM x")));
    }
}
