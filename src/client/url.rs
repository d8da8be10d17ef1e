//! What is wrong with the URL of a node, in words. Never with a password.
//!
//! The `redis` crate reads URLs, but says of most mistakes only that there is one, and passes over
//! some: a parameter that it does not know, and a user without a password, who is never logged in.

/// The schemes that a URL can begin with.
const SCHEMES: [&str; 7] =
    ["redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix"];

/// The parts of a URL. What stands before `@` may hold a password.
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
    // A password without `@` behind it.
    let place = if place.starts_with(':') { "..." } else { place };
    let login = login.map_or("", |_| "...@");
    let parameters = if parameters.is_empty() { "" } else { "?..." };
    format!("{scheme}://{login}{place}{parameters}")
}

/// Checks a URL as far as its mistakes can be told apart.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check(url: &str) -> Result<(), String> {
    if url.is_empty() {
        return Err("it is empty: is a variable not set, or a comma too many?".to_owned());
    }
    let parts = split(url).ok_or_else(|| "it has no scheme, as redis://".to_owned())?;
    if !SCHEMES.contains(&parts.scheme) {
        return Err(format!("'{}' is no scheme of a node", parts.scheme));
    }
    let is_socket = parts.scheme.ends_with("unix");
    let known: &[&str] =
        if is_socket { &["db", "user", "pass", "protocol"] } else { &["protocol"] };
    for parameter in parts.parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let name = parameter.split('=').next().unwrap_or_default();
        if !known.contains(&name) {
            return Err(format!("the parameter '{name}' is not known"));
        }
    }
    if is_socket {
        return Ok(());
    }
    if let Some(login) = parts.login {
        if login.contains(['/', '?', '#']) {
            return Err("write / ? and # of a password as %2F %3F and %23".to_owned());
        }
        if !login.contains(':') {
            return Err("it has a user without a password: write a password as :password@, with \
                        the colon"
                .to_owned());
        }
    }
    check_place(parts.place.split(['/', '#']).next().unwrap_or_default())
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
    if host.is_empty() {
        return Err("it has no host".to_owned());
    }
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    match port.filter(|port| !port.is_empty() && !is_port(port)) {
        Some(port) => Err(format!("the port '{port}' is no number from 1 to 65535")),
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
            ("127.0.0.1:7001", "no scheme"),
            ("http://h", "'http'"),
            ("redis://h:99999", "'99999'"),
            ("redis://h:0", "'0'"),
            ("redis://h:abc", "'abc'"),
            ("redis://[::1", "bracket"),
            ("redis://[::1]:x", "'x'"),
            ("redis://", "no host"),
            ("redis://:7001", "no host"),
            ("redis://h?foo=bar", "'foo'"),
            ("unix:///s?foo=bar", "'foo'"),
            ("redis://s3cret@h", ":password@"),
            ("redis://:s3/cret@h", "%2F"),
        ] {
            let said = check(url).expect_err(url);
            assert!(said.contains(problem), "{url}: {said}");
            assert!(!said.contains("s3"), "{url}: {said}");
        }
    }

    #[test]
    fn what_can_be_used_is_let_through() {
        for url in [
            "redis://h",
            "redis://h:",
            "redis://h:65535/3",
            "rediss://user:p%40w@[::1]:7001/0",
            "redis://:p?w@h".replace('?', "%3F").as_str(),
            "unix:///run/redis.sock?db=1&user=u&pass=p",
            "rediss://h#insecure",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
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
        ] {
            let shown = shown(url);
            assert!(!shown.contains("s3") && !shown.contains("cr"), "{url}: {shown}");
        }
        assert_eq!(shown("redis://:p@h:99999/1"), "redis://...@h:99999/1");
    }
}
