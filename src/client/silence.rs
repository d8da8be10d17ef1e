//! What is said of servers that lead to a node and do not answer, and how that is recognized.
//!
//! A vote keeps only the text. So whoever wants to know more of it asks here, where it is made.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::inbox::NoReply;

/// What is said of one of several servers that has not answered in time.
pub(super) const NO_ANSWER: &str = "no answer";
/// The text if no server of a Cluster answers.
pub(super) const NOBODY: &str = "no known server of the Cluster answers";
/// The text if no Sentinel answers.
pub(super) const NO_SENTINEL: &str = "no Sentinel answers";
/// Between that and the Sentinels, if all of them are silent.
const NONE_OF: &str = ": none of ";
/// The end of the text if only some Sentinels have answered.
const FEW_SENTINELS: &str = ", and the client waits a moment for most";
/// The most Sentinels that are named.
const NAMED: usize = 4;

/// What a server has said that does not lead to the node, until one does: others may hang.
#[derive(Clone, Debug, Default)]
pub(super) struct Telling(Arc<Mutex<Option<Arc<str>>>>);

impl Telling {
    fn last(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        // Nothing panics while the lock is held, so it is intact even if it is poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of an answer, or why there is none.
    pub(super) fn note<T>(&self, told: &Result<T, NoReply>) {
        match told {
            Ok(_) => *self.last() = None,
            Err(NoReply::Unreachable(_) | NoReply::TimedOut) => {}
            Err(
                NoReply::Garbled(text)
                | NoReply::NoPermission(text)
                | NoReply::Unavailable(text)
                | NoReply::Refused(text),
            ) => *self.last() = Some(Arc::clone(text)),
        }
    }

    /// What was said last, or else this of their silence. It is not final: one that has not
    /// answered yet may lead there.
    pub(super) fn or(&self, silence: String) -> Arc<str> {
        match &*self.last() {
            Some(text) => format!("{text}; no other server answers so far").into(),
            None => silence.into(),
        }
    }
}

/// Of several reasons, one that needs action; if there is only silence, all of them.
pub(super) fn most_telling(failures: Vec<NoReply>, silence: &str) -> NoReply {
    let (mut silent, mut rest) = (Vec::new(), Vec::new());
    for failure in failures {
        match failure {
            NoReply::Unreachable(text) => silent.push(text),
            NoReply::TimedOut => silent.push(NO_ANSWER.into()),
            failure => rest.push(failure),
        }
    }
    let is_refused = |failure: &NoReply| matches!(failure, NoReply::Refused(_));
    let at = rest.iter().position(is_refused).unwrap_or(0);
    if rest.is_empty() {
        return NoReply::Unreachable(format!("{silence}: {}", silent.join("; ")).into());
    }
    rest.swap_remove(at)
}

/// What is said while the master of a group is not known: nobody answers, or some of all Sentinels
/// have, and most are waited for. Those that have not are named, if they are few.
pub(super) fn of_sentinels(all: &[&str], heard: &[Arc<str>]) -> String {
    let is_silent = |name: &&&str| heard.iter().all(|heard| **heard != ***name);
    let silent: Vec<&str> = all.iter().filter(is_silent).copied().collect();
    let named = if_few(&silent);
    match (heard.len(), named) {
        (0, named) => of_none(NO_SENTINEL, named),
        (heard, named) => {
            let but = named.map(|names| format!(" (not {names})")).unwrap_or_default();
            let text = format!("{heard} of {} Sentinels answered in time{but}", all.len());
            format!("{text}{FEW_SENTINELS}")
        }
    }
}

/// What is said while no server of a Cluster is known to answer. `all`: those in its URL.
pub(super) fn of_servers(all: &[&str]) -> String {
    of_none(NOBODY, if_few(all))
}

/// That none of these answers, which are named if they are known.
fn of_none(silence: &str, named: Option<String>) -> String {
    named.map_or(silence.to_owned(), |names| format!("{silence}{NONE_OF}{names}"))
}

/// These names, unless they are too many.
fn if_few(names: &[&str]) -> Option<String> {
    (1..=NAMED).contains(&names.len()).then(|| names.join(", "))
}

/// Whether this is said of a group whose master was not known in time: more time may help.
pub(super) fn is_of_sentinels_in_time(text: &str) -> bool {
    let of_none = text.strip_prefix(NO_SENTINEL);
    text.ends_with(FEW_SENTINELS)
        || of_none.is_some_and(|rest| rest.is_empty() || rest.starts_with(NONE_OF))
}

/// Whether this says that a server was silent, or all of those that lead to the node.
#[cfg(feature = "cli")]
pub(crate) fn is_of_silence(text: &str) -> bool {
    [NO_ANSWER, NOBODY, NO_SENTINEL].iter().any(|silence| text.contains(silence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_has_to_mend_is_told_before_silence() {
        let silent = |text: &str| NoReply::Unreachable(text.into());
        let refused = NoReply::Refused("x".into());
        let both = most_telling(vec![silent("a"), refused.clone(), silent("b")], NO_SENTINEL);
        assert_eq!(both, refused);
        let all = most_telling(vec![silent("a"), silent("b")], NO_SENTINEL);
        assert_eq!(all, silent("no Sentinel answers: a; b"));
    }

    /// Regression: one server refused the password and another hung, and none was said to answer.
    #[test]
    fn what_one_server_says_is_not_hidden_by_another_that_hangs() {
        let told = Telling::default();
        let said = || told.or("none".to_owned()).to_string();
        assert_eq!(said(), "none");
        told.note::<()>(&Err(NoReply::NoPermission("WRONGPASS".into()).at("a:1")));
        told.note::<()>(&Err(NoReply::TimedOut));
        assert_eq!(said(), "a:1: WRONGPASS; no other server answers so far");
        assert!(!is_of_sentinels_in_time(&said()));
        told.note(&Ok(()));
        assert_eq!(said(), "none");
    }

    /// Regression: it was said that none answers, while one did.
    #[test]
    fn sentinels_that_have_answered_are_not_said_to_be_silent() {
        let said = |all: &[&str], heard: &[&str]| {
            let heard: Vec<Arc<str>> = heard.iter().map(|&name| name.into()).collect();
            of_sentinels(all, &heard)
        };
        let three = ["a:1", "b:1", "c:1"];
        assert_eq!(said(&three, &[]), "no Sentinel answers: none of a:1, b:1, c:1");
        let told = "1 of 3 Sentinels answered in time (not a:1, c:1), and the client waits a \
                    moment for most";
        assert_eq!(said(&three, &["b:1"]), told);
        let five = ["a:1", "b:1", "c:1", "d:1", "e:1"];
        assert_eq!(said(&five, &[]), NO_SENTINEL);
        let told = said(&five, &["c:1"]);
        assert!(
            told.starts_with("1 of 5 Sentinels answered in time (not a:1, b:1, d:1, e:1), and")
        );
    }

    /// Regression: with all servers of its URL hanging, a Cluster was said to be dead, and nobody
    /// was named.
    #[test]
    fn the_servers_of_a_cluster_that_are_asked_are_named() {
        let told = "no known server of the Cluster answers: none of a:1, b:1";
        assert_eq!(of_servers(&["a:1", "b:1"]), told);
        assert_eq!(of_servers(&["a:1"; 5]), NOBODY);
    }

    #[test]
    fn silence_is_recognized_by_what_is_said_of_it() {
        let all = ["a:1", "b:1", "c:1", "d:1", "e:1"];
        let of_all = |failure: NoReply, silence| match most_telling(vec![failure], silence) {
            NoReply::Unreachable(text) => text.to_string(),
            other => panic!("{other:?}"),
        };
        let no_answer = NoReply::Unreachable(NO_ANSWER.into()).at("a:1");
        let refused = NoReply::Unreachable("connection refused".into()).at("a:1");
        for (text, is_in_time, is_silence) in [
            (of_sentinels(&all[..3], &[]), true, true),
            (of_sentinels(&all, &[]), true, true),
            // Those that answer do so over TLS, too.
            (of_sentinels(&all[..3], &["b:1".into()]), true, false),
            (of_sentinels(&all, &["b:1".into()]), true, false),
            (of_all(no_answer.clone(), NO_SENTINEL), false, true),
            (of_all(NoReply::TimedOut, NO_SENTINEL), false, true),
            (of_all(refused.clone(), NO_SENTINEL), false, true),
            (of_all(no_answer, NOBODY), false, true),
            (of_all(refused, NOBODY), false, true),
            (of_servers(&all), false, true),
            (of_servers(&all[..2]), false, true),
            ("connection refused".to_owned(), false, false),
        ] {
            assert_eq!(is_of_sentinels_in_time(&text), is_in_time, "{text}");
            #[cfg(feature = "cli")]
            assert_eq!(is_of_silence(&text), is_silence, "{text}");
            #[cfg(not(feature = "cli"))]
            let _ = is_silence;
        }
    }
}
