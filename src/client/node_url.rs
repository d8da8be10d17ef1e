//! The URL of a node: where it is and the user to log in as, or what is wrong with the URL, in
//! words.
//!
//! URLs mean the same as in other Redis clients. Messages never contain a password. Mistakes that a
//! general URL parser accepts are refused: an unknown parameter, and a user without a password, who
//! would never be logged in.

use std::borrow::Cow;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::Url;

use super::printable::Printable;

const PORT_DEFAULT: u16 = 6379;
const SENTINEL_PORT_DEFAULT: u16 = 26_379;
/// The schemes that a URL can begin with.
const SCHEMES: [&str; 15] = [
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+unix",
    "valkey+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "valkey+sentinel",
    "valkeys+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "valkey+cluster",
    "valkeys+cluster",
];
/// The endings of the schemes whose URLs name several servers.
const SENTINEL: &str = "+sentinel";
const CLUSTER: &str = "+cluster";

/// The parts of a URL. The part before `@` may contain a password.
struct Parts<'u> {
    scheme: &'u str,
    login: Option<&'u str>,
    place: &'u str,
    parameters: &'u str,
}

fn split(url: &str) -> Option<Parts<'_>> {
    let (scheme, rest) = url.split_once("://")?;
    // A password may have a question mark.
    let start = rest.rfind('@').map_or(0, |at| at + 1);
    let (rest, parameters) = match rest[start..].find('?') {
        Some(at) => (&rest[..start + at], &rest[start + at + 1..]),
        None => (rest, ""),
    };
    let (login, place) = match rest.rsplit_once('@') {
        Some((login, place)) => (Some(login), place),
        None => (None, rest),
    };
    Some(Parts { scheme, login, place, parameters })
}

/// The URL as people may see it: without user, password and parameters.
pub(super) fn shown(url: &str) -> String {
    let Some(parts) = split(url) else {
        return url.rsplit_once('@').map_or(url.to_owned(), |(_, place)| format!("...@{place}"));
    };
    let Parts { scheme, login, place, parameters } = parts;
    let (place, fragment) = match place.split_once('#') {
        Some((place, _)) => (place, "#..."),
        None => (place, ""),
    };
    let place = without_secrets(place);
    let login = login.map_or("", |_| "...@");
    let parameters = if parameters.is_empty() { "" } else { "?..." };
    format!("{scheme}://{login}{place}{fragment}{parameters}")
}

/// The place, or the places between commas, up to a part that may be a password.
fn without_secrets(place: &str) -> String {
    let mut shown = Vec::new();
    for place in place.split(',') {
        let safe = without_secret(place);
        let is_whole = safe == place;
        shown.push(safe);
        if !is_whole {
            break;
        }
    }
    shown.join(",")
}

/// The place, without a part that may be a password with no host after it.
fn without_secret(place: &str) -> Cow<'_, str> {
    let address = place.split('/').next().unwrap_or_default();
    match address.split_once(':') {
        Some(("", _)) => "...".into(),
        Some((host, port)) if !host.starts_with('[') && !is_digits(port) => {
            format!("{host}:...").into()
        }
        Some(_) | None => place.into(),
    }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// What a URL contains.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct NodeUrl {
    pub(super) place: Location,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

/// Without the password.
impl fmt::Debug for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeUrl").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Tcp {
        host: String,
        port: u16,
        is_tls: bool,
    },
    Unix(PathBuf),
    /// At the master of this group, which these Sentinels know.
    Sentinels {
        group: String,
        sentinels: Vec<NodeUrl>,
        is_tls: bool,
    },
    /// At all masters of a Cluster, which these servers know.
    Cluster {
        seeds: Vec<Location>,
        is_tls: bool,
    },
}

/// Without login, on one line: for people.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Tcp { host, port, .. } if host.contains(':') => {
                write!(f, "[{}]:{port}", Printable::text(host))
            }
            Location::Tcp { host, port, .. } => write!(f, "{}:{port}", Printable::text(host)),
            Location::Unix(path) => Printable(path.as_os_str().as_bytes()).fmt(f),
            // The first is enough: these Sentinels have no second group of that name.
            Location::Sentinels { group, sentinels, .. } => match sentinels.first() {
                Some(first) => write!(f, "{}/{}", first.place, Printable::text(group)),
                None => Printable::text(group).fmt(f),
            },
            Location::Cluster { seeds, .. } => match seeds.first() {
                Some(first) => write!(f, "cluster:{first}"),
                None => f.write_str("cluster"),
            },
        }
    }
}

/// Rejoins URLs that were cut at commas: a URL that names several servers contains commas itself.
pub fn joined(pieces: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for piece in pieces {
        let is_open = |url: &&mut String| {
            let parts = split(url.trim());
            parts.is_some_and(|parts| {
                let is_list = parts.scheme.ends_with(SENTINEL) || parts.scheme.ends_with(CLUSTER);
                is_list && !parts.place.contains('/')
            })
        };
        match urls.last_mut().filter(|_| !piece.contains("://")).filter(is_open) {
            Some(url) => *url = format!("{},{}", url.trim_end(), piece.trim()),
            None => urls.push(piece),
        }
    }
    urls
}

/// Reads a URL.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read(text: &str) -> Result<NodeUrl, String> {
    check(text)?;
    match split(text) {
        Some(parts) if parts.scheme.ends_with(SENTINEL) => return group(&parts),
        Some(parts) if parts.scheme.ends_with(CLUSTER) => return cluster(&parts),
        Some(_) | None => {}
    }
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    match url.fragment() {
        None => {}
        Some("insecure") => {
            return Err("#insecure is not supported: a lock trusts what its nodes say".to_owned());
        }
        Some(_) => {
            return Err("nothing is known that begins with #: write %23 for # itself".to_owned());
        }
    }
    if url.scheme().ends_with("unix") { socket(&url) } else { tcp(&url, PORT_DEFAULT) }
}

/// Sentinels and the name of a group: `[user:password@]s1:26379,s2:26379/name[/database]`.
fn group(parts: &Parts<'_>) -> Result<NodeUrl, String> {
    let no_name = || {
        "it has no name of a group: write it behind all Sentinels, in one URL, as in \
         host1:26379,host2:26379/mymaster"
            .to_owned()
    };
    let (servers, path) = parts.place.split_once('/').ok_or_else(no_name)?;
    let (name, database_text) = path.split_once('/').unwrap_or((path, ""));
    let not_text = |_| "the name of its group is not UTF-8".to_owned();
    let name = percent_decode_str(name).decode_utf8().map_err(not_text)?.into_owned();
    if name.is_empty() {
        return Err(no_name());
    }
    let is_tls = parts.scheme.starts_with("rediss") || parts.scheme.starts_with("valkeys");
    let (user, password) = login_at_sentinels(parts)?;
    let mut sentinels: Vec<NodeUrl> = Vec::new();
    for server in listed(servers) {
        let server = server?;
        let NodeUrl { place, .. } = server_of(server, None, (is_tls, SENTINEL_PORT_DEFAULT))?;
        let (user, password) = (user.clone(), password.clone());
        let sentinel = NodeUrl { place, user, password, database: 0 };
        if sentinels.contains(&sentinel) {
            return Err(format!("it names the Sentinel {server} twice"));
        }
        sentinels.push(sentinel);
    }
    // The master's address is not known yet, but its login is.
    let master = server_of("master", parts.login, (is_tls, PORT_DEFAULT))?;
    let place = Location::Sentinels { group: name, sentinels, is_tls };
    let database = database(database_text)
        .map_err(|problem| format!("{problem}, which is all that follows the name of a group"))?;
    Ok(NodeUrl { place, database, ..master })
}

/// The login for the Sentinels.
fn login_at_sentinels(parts: &Parts<'_>) -> Result<(Option<String>, Option<String>), String> {
    let parameter = |name: &str| {
        let all = url::form_urlencoded::parse(parts.parameters.as_bytes());
        all.filter(|(known, _)| known == name).last().map(|(_, value)| value.into_owned())
    };
    let (user, password) = (parameter("sentinel_username"), parameter("sentinel_password"));
    if user.is_some() && password.is_none() {
        return Err("it has a sentinel_username without a sentinel_password".to_owned());
    }
    Ok((user, password))
}

/// One server of several in a URL.
fn server_of(
    server: &str,
    login: Option<&str>,
    (is_tls, port): (bool, u16),
) -> Result<NodeUrl, String> {
    check_place(server)?;
    let scheme = if is_tls { "rediss" } else { "redis" };
    let login = login.map_or(String::new(), |login| format!("{login}@"));
    let url = Url::parse(&format!("{scheme}://{login}{server}"));
    tcp(&url.map_err(|error| error.to_string())?, port)
}

/// The servers of a list, of which none may be empty.
fn listed(servers: &str) -> impl Iterator<Item = Result<&str, String>> {
    let is_list = servers.contains(',');
    servers.split(',').map(str::trim).map(move |server| match server {
        "" if is_list => {
            Err("a server in its list is empty: there may be a comma too many".to_owned())
        }
        server => Ok(server),
    })
}

/// Servers of a Cluster: `[user:password@]h1:7000,h2:7000`.
fn cluster(parts: &Parts<'_>) -> Result<NodeUrl, String> {
    let (servers, path) = parts.place.split_once('/').unwrap_or((parts.place, ""));
    if !matches!(path, "" | "0") {
        return Err(format!("a Cluster has one database, 0, and no '{path}'"));
    }
    let is_tls = parts.scheme.starts_with("rediss") || parts.scheme.starts_with("valkeys");
    let mut seeds = Vec::new();
    for server in listed(servers) {
        let server = server?;
        let NodeUrl { place, .. } = server_of(server, None, (is_tls, PORT_DEFAULT))?;
        if seeds.contains(&place) {
            return Err(format!("it names the server {server} twice"));
        }
        seeds.push(place);
    }
    let login = server_of("master", parts.login, (is_tls, PORT_DEFAULT))?;
    Ok(NodeUrl { place: Location::Cluster { seeds, is_tls }, ..login })
}

fn tcp(url: &Url, port_default: u16) -> Result<NodeUrl, String> {
    let is_tls = matches!(url.scheme(), "rediss" | "valkeys");
    let host = match url.host().ok_or("it has no host")? {
        url::Host::Domain(name) => domain(name)?,
        url::Host::Ipv4(address) => address.to_string(),
        url::Host::Ipv6(address) => address.to_string(),
    };
    if host.parse().is_ok_and(|address: std::net::IpAddr| address.is_unspecified()) {
        return Err(format!("{host} is where a server listens, not an address of a node"));
    }
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(Cow::into_owned);
    let not_text = |_| "user and password must be UTF-8".to_owned();
    Ok(NodeUrl {
        place: Location::Tcp { host, port: url.port().unwrap_or(port_default), is_tls },
        user: Some(decoded(url.username()).map_err(not_text)?).filter(|user| !user.is_empty()),
        password: url.password().map(decoded).transpose().map_err(not_text)?,
        database: database(url.path().trim_matches('/'))?,
    })
}

/// A name, or an IPv4 address in one of the shorter spellings that the system accepts, as 127.1.
/// Letters that are not ASCII, which the parser has escaped, become those that DNS has in place of
/// them (IDNA).
fn domain(name: &str) -> Result<String, String> {
    match url::Host::parse(name) {
        Ok(url::Host::Ipv4(address)) => Ok(address.to_string()),
        Ok(url::Host::Domain(ascii)) if name.contains('%') => Ok(ascii),
        Err(_) if name.contains('%') => Err("its host is not a valid DNS name".to_owned()),
        Ok(url::Host::Domain(_) | url::Host::Ipv6(_)) | Err(_) => Ok(name.to_ascii_lowercase()),
    }
}

fn socket(url: &Url) -> Result<NodeUrl, String> {
    let path = url.to_file_path().map_err(|()| "it has no path of a socket".to_owned())?;
    let parameter = |name| {
        let found = url.query_pairs().filter(|(known, _)| known == name).last();
        found.map(|(_, value)| value.into_owned())
    };
    Ok(NodeUrl {
        place: Location::Unix(path),
        user: parameter("user"),
        password: parameter("pass"),
        database: database(&parameter("db").unwrap_or_default())?,
    })
}

fn database(text: &str) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let number = text.parse().ok().filter(|number: &u32| *number <= i32::MAX.unsigned_abs());
    number.map(i64::from).ok_or_else(|| format!("the database '{text}' is not a number from 0 up"))
}

/// Checks a URL for the mistakes that can be told apart.
fn check(url: &str) -> Result<(), String> {
    let parts = check_start(url)?;
    if url.matches("://").count() > 1 {
        return Err("it looks like several: give one URL per node".to_owned());
    }
    check_escapes(&parts)?;
    check_parameters(&parts)?;
    if parts.scheme.ends_with("unix") {
        return check_login_at_socket(&parts);
    }
    let is_list = parts.scheme.ends_with(SENTINEL) || parts.scheme.ends_with(CLUSTER);
    if let Some(login) = parts.login {
        check_login(login, is_list)?;
    }
    if !is_list {
        return check_place(parts.place.split(['/', '#']).next().unwrap_or_default());
    }
    if parts.place.contains('#') {
        return Err("nothing in it begins with #: write the name of a group behind a /, and %23 \
                    for # itself"
            .to_owned());
    }
    Ok(())
}

/// Checks that it is a URL of a node.
fn check_start(url: &str) -> Result<Parts<'_>, String> {
    if url.is_empty() {
        return Err(
            "it is empty: perhaps a variable is not set, or there is a comma too many".to_owned()
        );
    }
    if url.starts_with(['"', '\'']) {
        return Err("it begins with a quote: leave the quotes out".to_owned());
    }
    check_blanks(url)?;
    let start = || {
        "it does not begin with a scheme and ://, as redis:// (the URL of a Cluster or of \
         Sentinels has commas, and is one)"
            .to_owned()
    };
    let parts = split(url).ok_or_else(start)?;
    if !SCHEMES.contains(&parts.scheme) {
        let is_known = SCHEMES.contains(&&*parts.scheme.to_ascii_lowercase());
        let case = if is_known { ": write it in lower case" } else { "" };
        return Err(format!("'{}' is not a scheme for nodes{case}", parts.scheme));
    }
    Ok(parts)
}

/// Refuses blanks: the parser would drop most of them without a word, even from a password.
fn check_blanks(url: &str) -> Result<(), String> {
    let scheme = split(url).map_or("", |parts| parts.scheme);
    let is_list = scheme.ends_with(SENTINEL) || scheme.ends_with(CLUSTER);
    let is_several = url.matches("://").count() > 1;
    let is_blank = |c: char| c.is_whitespace() || c.is_control();
    let is_allowed = |(at, c): (usize, char)| {
        let (before, behind) = (url[..at].trim_end(), url[at..].trim_start());
        // Between the servers of a list, and within the path of a socket.
        let is_between = is_list && (before.ends_with(',') || behind.starts_with(','));
        let is_within = scheme.ends_with("unix") && c == ' ' && !behind.is_empty();
        is_between || is_within
    };
    let mut blanks = url.char_indices().filter(|(_, c)| is_blank(*c));
    match blanks.find(|blank| !is_allowed(*blank)) {
        Some((at, c)) if !is_several => {
            let place = url[..at].chars().count() + 1;
            Err(match c.is_whitespace() {
                true => format!(
                    "it has a space or a line end at character {place}: leave it out, or write it \
                     as %20 or %0A"
                ),
                false => format!(
                    "it has a control character (a NUL, for example) at character {place}: leave \
                     it out"
                ),
            })
        }
        Some(_) | None => Ok(()),
    }
}

/// The parameters that the URL of a socket, of Sentinels, and any other may have.
const PARAMETERS: [&[&str]; 3] = [
    &["db", "user", "pass", "protocol"],
    &["sentinel_username", "sentinel_password", "protocol"],
    &["protocol"],
];

fn check_parameters(parts: &Parts<'_>) -> Result<(), String> {
    let [socket, group, other] = PARAMETERS;
    let known = match parts.scheme {
        scheme if scheme.ends_with("unix") => socket,
        scheme if scheme.ends_with(SENTINEL) => group,
        _ => other,
    };
    for parameter in parts.parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let name = parameter.split('=').next().unwrap_or_default();
        if !known.contains(&name) {
            let allowed = match known {
                [one] => format!("the only one is {one}"),
                _ => format!("the allowed ones are {}", known.join(", ")),
            };
            return Err(format!("unknown parameter '{name}': {allowed}"));
        }
    }
    Ok(())
}

fn check_login_at_socket(parts: &Parts<'_>) -> Result<(), String> {
    match parts.login {
        // The path of a socket may have an @.
        Some(login) if !login.starts_with('/') => {
            Err("write the login for a socket behind its path, as ?user=...&pass=...".to_owned())
        }
        Some(_) | None => Ok(()),
    }
}

/// `is_list`: whether the login is for several servers.
fn check_login(login: &str, is_list: bool) -> Result<(), String> {
    // Behind the login of the first server, the next one would become part of the password.
    if is_list && login.contains([',', '@']) {
        return Err("write the login once, before the first server, and a comma or an @ in it as \
                    %2C or %40"
            .to_owned());
    }
    if login.contains(['/', '?', '#']) {
        return Err("write / ? and # of a password as %2F %3F and %23".to_owned());
    }
    if !login.contains(':') {
        return Err("it has a user without a password: write a password as :password@, with the \
                    colon"
            .to_owned());
    }
    Ok(())
}

/// Refuses a `%` that is not an escape: it would be taken literally, even in a password.
fn check_escapes(parts: &Parts<'_>) -> Result<(), String> {
    let (user, password) = match parts.login {
        Some(login) => login.split_once(':').unwrap_or((login, "")),
        None => ("", ""),
    };
    let places = [("user", user), ("password", password), ("address", parts.place)];
    for (what, text) in places.into_iter().chain([("parameters", parts.parameters)]) {
        let is_digit = |digit: Option<&u8>| digit.is_some_and(u8::is_ascii_hexdigit);
        let escapes = text.bytes().enumerate().filter(|(_, byte)| *byte == b'%').map(|(at, _)| at);
        let is_bad = |at: &usize| {
            let digits = &text.as_bytes()[at + 1..];
            !is_digit(digits.first()) || !is_digit(digits.get(1))
        };
        if let Some(at) = escapes.into_iter().find(is_bad) {
            let place = text[..at].chars().count() + 1;
            return Err(format!(
                "the % at character {place} of its {what} is not followed by two hexadecimal \
                 digits: write %25 for % itself"
            ));
        }
    }
    Ok(())
}

/// Checks `host:port`.
fn check_place(place: &str) -> Result<(), String> {
    let (host, port) = match place.split_once(']') {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None if place.starts_with('[') => {
            return Err("the bracket of its IPv6 address is not closed".to_owned());
        }
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let is_ipv6 = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    if place.matches(':').count() > 1 && place.chars().all(is_ipv6) {
        return Err("write an IPv6 address in brackets, as [::1]".to_owned());
    }
    if host.is_empty() {
        return Err("it has no host".to_owned());
    }
    let is_port = |port: &str| is_digits(port) && port.parse::<u16>().is_ok_and(|port| port > 0);
    match port.filter(|port| !port.is_empty() && !is_port(port)) {
        Some(port) if is_digits(port.trim_start_matches(['+', '-'])) => {
            Err(format!("the port '{port}' is not a number from 1 to 65535"))
        }
        Some(port) if port.contains(';') && port.split([';', ':', '.']).any(is_digits) => {
            Err("it has a ; where servers are separated by commas".to_owned())
        }
        // It may be a password.
        Some(_) => {
            Err("its port is not a number: write a login as user:password@host, and a comma \
                        in it as %2C"
                .to_owned())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_named() {
        for (url, problem) in [
            ("", "empty"),
            ("127.0.0.1:7001", "does not begin with a scheme"),
            ("redis:/h", "a scheme and ://"),
            ("\"redis://h\"", "leave the quotes out"),
            ("'redis+cluster://h", "leave the quotes out"),
            ("http://h", "'http' is not a scheme for nodes"),
            ("Redis://h", "'Redis' is not a scheme for nodes: write it in lower case"),
            ("redis://h:99999", "'99999'"),
            ("redis://h:0", "'0'"),
            ("redis://h:+7001", "'+7001'"),
            ("redis+cluster://a,h:-1", "'-1'"),
            ("redis://h:abc", "port is not a number"),
            ("redis://me:s3cret", "user:password@host"),
            ("redis://a, redis://b", "one URL per node"),
            ("redis://h:29000\n", "a space or a line end at character 16"),
            ("redis://h:29000 ", "at character 16"),
            (" redis://h", "at character 1:"),
            ("redis://h\n", "at character 10"),
            ("redis://h\t:29000", "at character 10"),
            ("redis://:pw\n@h", "at character 12"),
            ("redis://:p w@h", "at character 11"),
            ("redis://h\u{a0}", "at character 10"),
            ("redis://h\0", "a control character (a NUL, for example) at character 10: leave"),
            ("redis://h%0Ax", "not a valid DNS name"),
            ("redis://größe%20", "not a valid DNS name"),
            ("redis+cluster://a,h%0A", "not a valid DNS name"),
            ("unix:///a.sock\n", "at character 15"),
            ("unix:///a.sock ", "at character 15"),
            ("redis+sentinel://a, b/m ", "at character 24"),
            ("redis+sentinel://a b/m", "at character 19"),
            ("redis://::1", "[::1]"),
            ("redis://fe80::1:7001", "[::1]"),
            ("unix:///s?pass=s#s3cret", "%23"),
            ("redis://[::1", "bracket"),
            ("redis://[::1]:x", "port is not a number"),
            ("redis://127.1:x", "port"),
            ("redis://0:1", "listens"),
            ("redis://", "no host"),
            ("redis://:7001", "no host"),
            ("redis+cluster://a,,b", "a comma too many"),
            ("redis+cluster://a:1,", "a comma too many"),
            ("redis+sentinel://a,,b/m", "a comma too many"),
            ("redis://h?foo=bar", "'foo'"),
            ("unix:///s?foo=bar", "'foo': the allowed ones are db, user, pass, protocol"),
            ("unix://me:s3cret@/s", "?user=...&pass=..."),
            ("redis+unix://me@/s", "?user=...&pass=..."),
            ("redis://s3cret@h", ":password@"),
            ("redis://:s3/cret@h", "%2F"),
            ("redis://h/x", "'x'"),
            ("redis://h/-1", "'-1'"),
            ("unix:///s?db=4294967296", "'4294967296'"),
            ("redis://0.0.0.0:1", "listens"),
            ("redis://[::]:1", "listens"),
            ("rediss://h#insecure", "#insecure"),
            ("rediss://h#else", "#"),
            ("redis://:%ff@h", "UTF-8"),
            ("redis://:s3%zzcret@h", "the % at character 3 of its password"),
            ("redis://u:s3cret%2@h", "character 7 of its password"),
            ("redis://%:s3cret@h", "character 1 of its user"),
            ("redis://h%4", "character 2 of its address"),
            ("unix:///run/%re.sock", "character 6 of its address"),
            ("unix:///s?pass=s3%", "character 8 of its parameters"),
            ("redis+sentinel://a,b", "no name of a group"),
            ("redis+sentinel://a,b/", "no name of a group"),
            ("redis+sentinel:///m", "no host"),
            ("redis+sentinel://a,/m", "a comma too many"),
            ("redis+sentinel://a,b:x/m", "port is not a number"),
            ("redis+sentinel://a,A:26379/m", "A:26379 twice"),
            ("redis+sentinel://a#m", "behind a /"),
            ("redis+sentinel://a,redis://b/m", "one URL per node"),
            ("redis+sentinel://a/m/x", "'x' is not a number from 0 up, which is all that follows"),
            ("redis+sentinel://a:1;b:2/m", "a ; where servers are separated by commas"),
            ("redis+cluster://a:1;b:2", "a ; where servers are separated by commas"),
            ("redis+cluster://u:s3@a,u:s3@b", "the login once, before the first server"),
            ("redis+cluster://u:s3,x@a,b", "a comma or an @ in it as %2C or %40"),
            ("redis+sentinel://u:s3@a,u:s3@b/m", "the login once, before the first server"),
            ("rediss+sentinel://:s3@x@a,b/m", "a comma or an @ in it as %2C or %40"),
            ("redis+cluster://a?db=1", "'db': the only one is protocol"),
            ("redis+sentinel://a/m?db=1", "'db'"),
            ("redis+sentinel://a/m?sentinel_username=s3", "without a sentinel_password"),
            ("redis+sentinel://s3cret@a/m", ":password@"),
            ("redis+sentinel://0.0.0.0/m", "listens"),
            ("redis-sentinel://a/m", "'redis-sentinel'"),
            ("redis+cluster://", "no host"),
            ("redis+cluster://a,A:6379", "A:6379 twice"),
            ("redis+cluster://a,b/3", "one database"),
            ("redis+cluster://a?sentinel_username=x", "'sentinel_username'"),
        ] {
            let said = read(url).expect_err(url);
            assert!(said.contains(problem), "{url}: {said}");
            assert!(!said.contains("s3"), "{url}: {said}");
        }
    }

    fn tcp(host: &str, port: u16) -> NodeUrl {
        let place = Location::Tcp { host: host.to_owned(), port, is_tls: false };
        NodeUrl { place, user: None, password: None, database: 0 }
    }

    #[test]
    fn a_url_means_what_it_means_to_other_clients() {
        assert_eq!(read("redis://h"), Ok(tcp("h", 6379)));
        assert_eq!(read("valkey://H.example:"), Ok(tcp("h.example", 6379)));
        assert_eq!(read("redis://h:65535/3"), Ok(NodeUrl { database: 3, ..tcp("h", 65_535) }));
        for spelling in ["127.1", "0x7f.0.0.1", "2130706433"] {
            assert_eq!(read(&format!("redis://{spelling}")), Ok(tcp("127.0.0.1", 6379)));
        }
        assert_eq!(read("redis://my_host"), Ok(tcp("my_host", 6379)));
        for spelling in ["Größe.example", "gr%C3%B6%C3%9Fe.example", "xn--gre-6ka8i.example"] {
            let expected = tcp("xn--gre-6ka8i.example", 7001);
            assert_eq!(read(&format!("redis://{spelling}:7001")), Ok(expected));
        }
        assert_eq!(read("redis://h?protocol=resp3"), Ok(tcp("h", 6379)));
        let secret = |user: Option<&str>, password: &str| NodeUrl {
            user: user.map(str::to_owned),
            password: Some(password.to_owned()),
            ..tcp("::1", 7001)
        };
        assert_eq!(read("redis://[::1]:7001"), Ok(tcp("::1", 7001)));
        assert_eq!(read("redis://:p%3Fw@[::1]:7001/0"), Ok(secret(None, "p?w")));
        assert_eq!(read("redis://us%40er:p%40w@[::1]:7001"), Ok(secret(Some("us@er"), "p@w")));
        for scheme in ["rediss", "valkeys"] {
            let Location::Tcp { is_tls, .. } = read(&format!("{scheme}://h")).unwrap().place else {
                panic!("a socket")
            };
            assert!(is_tls, "{scheme}");
        }
    }

    #[test]
    fn a_socket_takes_its_login_from_the_parameters() {
        for path in ["/run/re dis.sock", "/run/at@home.sock"] {
            let place = read(&format!("unix://{path}")).map(|url| url.place);
            assert_eq!(place, Ok(Location::Unix(path.into())));
        }
        for scheme in ["unix", "redis+unix", "valkey+unix"] {
            let read = read(&format!("{scheme}:///run/re%20dis.sock?db=1&user=u&pass=p%26"));
            let expected = NodeUrl {
                place: Location::Unix("/run/re dis.sock".into()),
                user: Some("u".to_owned()),
                password: Some("p&".to_owned()),
                database: 1,
            };
            assert_eq!(read, Ok(expected), "{scheme}");
        }
    }

    #[test]
    fn the_login_before_the_sentinels_is_the_masters_and_theirs_is_a_parameter() {
        let url = "rediss+sentinel://me:p%40w@[::1],S2:7000/my%2Fmaster/3\
                   ?sentinel_username=eye&sentinel_password=s%26w";
        let sentinel = |host: &str, port| NodeUrl {
            place: Location::Tcp { host: host.to_owned(), port, is_tls: true },
            user: Some("eye".to_owned()),
            password: Some("s&w".to_owned()),
            database: 0,
        };
        let sentinels = vec![sentinel("::1", 26_379), sentinel("s2", 7_000)];
        let group = "my/master".to_owned();
        let expected = NodeUrl {
            place: Location::Sentinels { group, sentinels, is_tls: true },
            user: Some("me".to_owned()),
            password: Some("p@w".to_owned()),
            database: 3,
        };
        assert_eq!(read(url), Ok(expected));
        assert!(!format!("{:?}", read(url)).contains("s&w"));
        let bare = read("valkey+sentinel://s1/m").unwrap();
        assert_eq!((bare.user, bare.password, bare.database), (None, None, 0));
    }

    #[test]
    fn every_scheme_and_parameter_is_documented() {
        let document = include_str!("../../docs/command-line.md");
        for scheme in SCHEMES {
            assert!(document.contains(&format!("`{scheme}://")), "{scheme}");
        }
        for parameter in PARAMETERS.concat() {
            assert!(document.contains(&format!("`{parameter}`")), "{parameter}");
        }
    }

    /// A locker's names are in errors, each of which is one line.
    #[test]
    fn a_name_is_one_line() {
        for (url, shown) in [
            ("unix:///run/a%0Ab%1B.sock", r"/run/a\nb\x1b.sock"),
            ("redis+sentinel://s/my%0Amaster", r"s:26379/my\nmaster"),
        ] {
            assert_eq!(read(url).unwrap().place.to_string(), shown);
        }
    }

    /// A list of nodes in a variable is separated by commas, and such URLs contain commas.
    #[test]
    fn a_list_that_was_cut_at_commas_is_put_together_again() {
        let cut = |list: &str| joined(list.split(',').map(str::to_owned));
        let group = "redis+sentinel://u:p@a:1,b,c:3/m?protocol=3";
        assert_eq!(cut(&format!("redis://x,{group},redis://y")), ["redis://x", group, "redis://y"]);
        assert_eq!(read("redis+sentinel://a, b ,c/m"), read("redis+sentinel://a,b,c/m"));
        assert_eq!(cut("redis+sentinel://a, b/m,c"), ["redis+sentinel://a,b/m", "c"]);
        assert_eq!(cut("redis+cluster://a,b:1,redis://c"), ["redis+cluster://a,b:1", "redis://c"]);
        assert_eq!(cut("redis://a,b"), ["redis://a", "b"]);
        assert_eq!(cut(",redis+sentinel://a,redis://b"), ["", "redis+sentinel://a", "redis://b"]);
    }

    #[test]
    fn no_password_is_shown() {
        for url in [
            "redis://:s3cret@h:x",
            "redis://s3cret@h",
            "redis://u:s3/cr?et@h:1",
            "redis://:s3cret",
            "u:s3cret@h",
            "unix:///x?pass=s3cret&foo=1",
            "unix:///x#s3cret",
            "redis://h/1#s3cret",
            "redis://:p@h#s3cret",
            "redis://me:s3cret",
            "redis://me:s3cret/1",
            "redis+cluster://me:s3cret,b",
            "redis+sentinel://me:s3cret,b/m",
            "redis+sentinel://me:s3,cret,b/m",
            "redis+sentinel://a,b/m?sentinel_password=s3cret",
        ] {
            let shown = shown(url);
            assert!(!shown.contains("s3") && !shown.contains("cr"), "{url}: {shown}");
        }
        assert_eq!(shown("redis://:p@h:99999/1"), "redis://...@h:99999/1");
        let group = "redis+sentinel://a:1,[::1]:2/m";
        assert_eq!(shown(group), group);
    }
}
