//! Why a replica that should follow a master does not: by the account of those who expect it, and
//! by its own.

use std::collections::BTreeMap;
use std::fmt;

use super::connect::info_field;
use super::inbox::NoReply;
use super::node_url::Location;
use super::printable::Printable;
use crate::wire::resp::Reply;

/// Why a replica is not attached to the master that it should follow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Absence {
    /// It cannot be reached, or does not answer.
    Unreachable,
    /// Its link to the master is down.
    LinkDown,
    /// It copies the master's data set at present.
    Copying,
    /// It follows another master: `host:port`.
    FollowsAnother(String),
    /// It is a master itself.
    IsMaster,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Absence::Unreachable => "it cannot be reached",
            Absence::LinkDown => "its link to the master is down",
            Absence::Copying => "it copies the data set at present",
            Absence::FollowsAnother(other) => {
                return write!(f, "it follows {}", Printable::text(other));
            }
            Absence::IsMaster => "it is a master itself",
        })
    }
}

/// So many words has a line of CLUSTER NODES about a server without slots.
const NODE_WORDS: usize = 8;

/// A replica that should follow a master, as the Sentinels or the Cluster say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// `host:port`, as a master names its replicas.
    pub(super) address: String,
    /// What is wrong with it, as far as they see.
    pub(super) absence: Option<Absence>,
}

impl Expected {
    /// What several say, by address. If they differ, what is wrong counts.
    pub(super) fn together(told: impl Iterator<Item = Expected>) -> Vec<Expected> {
        let mut all = BTreeMap::new();
        for Expected { address, absence } in told {
            let known: &mut Option<Absence> = all.entry(address).or_default();
            *known = known.take().or(absence);
        }
        all.into_iter().map(|(address, absence)| Expected { address, absence }).collect()
    }

    /// Reads what a Sentinel says of a replica.
    pub(super) fn at_sentinel(replica: &Reply) -> Option<Expected> {
        let field = |name: &str| match replica.value_of(name.as_bytes())? {
            Reply::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        };
        let address = format!("{}:{}", field("ip")?, field("port")?);
        let flags = field("flags").unwrap_or_default();
        let is = |flag: &str| flags.split(',').any(|given| given == flag);
        let absence = match field("role-reported").as_deref() {
            _ if is("s_down") || is("disconnected") => Some(Absence::Unreachable),
            Some("master") => Some(Absence::IsMaster),
            _ => {
                (field("master-link-status").as_deref() == Some("err")).then_some(Absence::LinkDown)
            }
        };
        Some(Expected { address, absence })
    }

    /// The replicas that a master of a Cluster expects, by its reply to CLUSTER NODES, and how they
    /// name it. One that has none after a failover expects the masters that are down and have no
    /// slots: one of them was its own.
    pub(super) fn in_cluster(reply: Option<&Reply>) -> (Vec<Expected>, Option<String>) {
        let Some(Reply::Text(text)) = reply else { return (Vec::new(), None) };
        let text = String::from_utf8_lossy(text);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let has = |line: &[&str], flag: &str| {
            line.get(2).is_some_and(|flags| flags.split(',').any(|given| given == flag))
        };
        let Some(own) = lines.iter().find(|line| has(line, "myself")) else {
            return (Vec::new(), None);
        };
        let name = own[1].split_once('@').and_then(|(place, _)| place.rsplit_once(':'));
        let name = name.map(|(host, port)| name_of(host, port));
        let is_down =
            |line: &[&str]| ["fail", "fail?", "noaddr"].iter().any(|flag| has(line, flag));
        let is_own = |line: &&Vec<&str>| has(line, "slave") && line.get(3) == own.first();
        // Whose place it took, and does not tell. That one has no slots, which follow the state.
        let is_former =
            |line: &&Vec<&str>| has(line, "master") && is_down(line) && line.len() == NODE_WORDS;
        let mut expected: Vec<&Vec<&str>> = lines.iter().filter(is_own).collect();
        if expected.is_empty() {
            expected = lines.iter().filter(is_former).collect();
        }
        let told = expected.into_iter().filter_map(|line| {
            let (id, place) = (*line.first()?, line.get(1)?.split_once('@')?.0);
            // Without an address it has only its id.
            let has_host = place.rsplit_once(':').is_some_and(|(host, _)| !host.is_empty());
            let address = if has_host { place } else { id }.to_owned();
            Some(Expected { address, absence: is_down(line).then_some(Absence::Unreachable) })
        });
        (told.collect(), name)
    }

    /// Whether it is missing at a master with these names, and why if that is known, given its own
    /// reply. `is_sure`: whether it is not attached under another address.
    pub(super) fn judged(
        self,
        told: &Result<Option<Reply>, NoReply>,
        masters: &[&str],
        is_sure: bool,
    ) -> Option<Option<Absence>> {
        let is_missing = is_sure || self.absence.is_some();
        match told {
            Ok(Some(info @ Reply::Text(_))) => own_account(info, masters, is_sure).map(Some),
            Err(NoReply::Unreachable(_) | NoReply::TimedOut) => {
                is_missing.then_some(Some(Absence::Unreachable))
            }
            // It does not let the user ask.
            _ => is_missing.then_some(self.absence),
        }
    }
}

/// Why a server is not attached to the master with these names, by its own INFO; `None` if it is.
/// If its link is up, the master may have another name there, as with TLS among the servers, unless
/// this `is_sure`.
fn own_account(info: &Reply, masters: &[&str], is_sure: bool) -> Option<Absence> {
    let field = |name: &str| info_field(info, name).unwrap_or_default();
    if field("role:") != "slave" {
        return Some(Absence::IsMaster);
    }
    let master = name_of(field("master_host:"), field("master_port:"));
    let is_up = field("master_link_status:") == "up";
    if !masters.contains(&&*master) && (is_sure || !is_up) {
        return Some(Absence::FollowsAnother(master));
    }
    match is_up {
        true => None,
        _ if field("master_sync_in_progress:") == "1" => Some(Absence::Copying),
        _ => Some(Absence::LinkDown),
    }
}

/// The name of a master at this place.
fn name_of(host: &str, port: &str) -> String {
    let (host, port) = (host.to_owned(), port.parse().unwrap_or_default());
    Location::Tcp { host, port, is_tls: false }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.as_bytes().to_vec().into())
    }

    #[test]
    fn a_cluster_names_the_replicas_of_the_master_that_is_asked() {
        let nodes = "bb 10.0.0.2:7001@17001 slave aa 0 1 2 connected\n\
                     aa 10.0.0.1:7000@17000,name myself,master - 0 0 2 connected 0-16383\n\
                     cc 10.0.0.3:7002@17002,other slave,fail aa 0 1 2 disconnected\n\
                     dd :0@0 slave,noaddr aa 0 1 2 disconnected\n\
                     ee ::1:7004@17004 slave,fail? aa 0 1 2 connected\n\
                     ff 10.0.0.6:7005@17005 slave gg 0 1 3 connected\n\
                     gg 10.0.0.7:7006@17006 master - 0 1 3 connected\n\
                     \n\
                     hh\n";
        let told = Expected::in_cluster(Some(&text(nodes)));
        let down = Some(Absence::Unreachable);
        let expected = [
            ("10.0.0.2:7001", None),
            ("10.0.0.3:7002", down.clone()),
            ("dd", down.clone()),
            ("::1:7004", down),
        ];
        let expected =
            expected.map(|(address, absence)| Expected { address: address.to_owned(), absence });
        assert_eq!(told, (expected.to_vec(), Some("10.0.0.1:7000".to_owned())));
        // Regression: after a failover nobody was named, and the new master was to blame.
        let nodes = "aa 10.0.0.1:7000@17000 myself,master - 0 0 2 connected 0-9\n\
                     bb 10.0.0.2:7001@17001 master,fail - 0 1 1 disconnected\n\
                     cc 10.0.0.3:7002@17002 master,fail - 0 1 3 disconnected 10-16383\n\
                     dd 10.0.0.4:7003@17003 master - 0 1 4 connected\n";
        let down = Some(Absence::Unreachable);
        let former = Expected { address: "10.0.0.2:7001".to_owned(), absence: down };
        assert_eq!(Expected::in_cluster(Some(&text(nodes))).0, [former]);
        let denied = Expected::in_cluster(Some(&Reply::Error("NOPERM".into())));
        assert_eq!(denied, (Vec::new(), None));
    }

    #[test]
    fn a_sentinel_says_what_is_wrong_with_a_replica() {
        let told = |flags: &str, link: &str, role: &str| {
            let fields = [("ip", "::1"), ("port", "7001"), ("flags", flags)];
            let more = [("master-link-status", link), ("role-reported", role)];
            let texts = fields.iter().chain(&more).flat_map(|(name, value)| [name, value]);
            let texts = texts.map(|text| Reply::Text(text.as_bytes().to_vec().into()));
            Expected::at_sentinel(&Reply::List(texts.collect())).unwrap()
        };
        let well = told("slave", "ok", "slave");
        assert_eq!(well, Expected { address: "::1:7001".to_owned(), absence: None });
        let absence = |flags, link, role| told(flags, link, role).absence;
        for flags in ["s_down,slave,disconnected", "slave,s_down", "slave,disconnected"] {
            assert_eq!(absence(flags, "err", "slave"), Some(Absence::Unreachable));
        }
        assert_eq!(absence("slave", "err", "slave"), Some(Absence::LinkDown));
        assert_eq!(absence("slave", "err", "master"), Some(Absence::IsMaster));
        assert_eq!(Expected::at_sentinel(&Reply::List(Vec::new())), None);
    }

    #[test]
    fn what_is_wrong_in_the_eyes_of_one_counts() {
        let one = |address: &str, absence| Expected { address: address.to_owned(), absence };
        let told = [one("b:1", None), one("a:1", None), one("b:1", Some(Absence::LinkDown))];
        let all = Expected::together(told.into_iter());
        assert_eq!(all, [one("a:1", None), one("b:1", Some(Absence::LinkDown))]);
    }

    #[test]
    fn a_replica_is_missing_by_its_own_account_or_by_that_of_others() {
        let masters = ["name:7000", "[::1]:7000"];
        let told = |absence: &Option<Absence>, reply: Result<Reply, NoReply>, is_sure| {
            let expected = Expected { address: "r:1".to_owned(), absence: absence.clone() };
            expected.judged(&reply.map(Some), &masters, is_sure)
        };
        let info = |link: &str, host: &str| {
            Ok(text(&format!("role:slave\r\nmaster_host:{host}\r\nmaster_port:7000\r\n{link}\r\n")))
        };
        let (up, down) = ("master_link_status:up", "master_link_status:down");
        let copying = "master_link_status:down\r\nmaster_sync_in_progress:1";
        let unreachable = Some(Absence::Unreachable);
        // Its own account counts, whatever others say.
        for (is_sure, absence) in [(true, &None), (false, &None), (false, &unreachable)] {
            let own = |reply| told(absence, reply, is_sure);
            assert_eq!(own(info(up, "::1")), None);
            assert_eq!(own(info(down, "name")), Some(Some(Absence::LinkDown)));
            assert_eq!(own(info(copying, "name")), Some(Some(Absence::Copying)));
            let another = Absence::FollowsAnother("h:7000".to_owned());
            // Regression: it follows the port for TLS, which this client does not know.
            assert_eq!(own(info(up, "h")), is_sure.then(|| Some(another.clone())));
            assert_eq!(own(info(down, "h")), Some(Some(another)));
            assert_eq!(own(Ok(text("role:master\r\n"))), Some(Some(Absence::IsMaster)));
        }
        for silent in [NoReply::TimedOut, NoReply::Unreachable("x".into())] {
            let own = |absence, is_sure| told(absence, Err(silent.clone()), is_sure);
            assert_eq!(own(&None, true), Some(unreachable.clone()));
            assert_eq!(own(&unreachable, false), Some(unreachable.clone()));
            assert_eq!(own(&None, false), None, "it may be attached under another address");
        }
        let denied = || Err(NoReply::NoPermission("WRONGPASS".into()));
        assert_eq!(told(&None, denied(), true), Some(None));
        assert_eq!(told(&None, Ok(Reply::Error("NOPERM".into())), true), Some(None));
        assert_eq!(told(&None, denied(), false), None);
        assert_eq!(told(&Some(Absence::LinkDown), denied(), false), Some(Some(Absence::LinkDown)));
    }

    #[test]
    fn a_master_is_shown_as_text() {
        let shown = |host: &str| Absence::FollowsAnother(format!("{host}:1")).to_string();
        assert_eq!(shown("h"), "it follows h:1");
        assert_eq!(shown("\u{1b}[2J"), r"it follows \x1b[2J:1");
    }
}
