//! The arguments of every command: refused in one printable line, or within all limits.

use super::input::Input;
use lockmod::engine::{Fence, Fencing, LABEL_MAX, Millis, Refusal, TOKEN_MAX};
use lockmod::wire::fact::{self, SUFFIX_MAX};
use lockmod::wire::request::{self, Limits, Request};
use lockmod::wire::resp;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let limits = Limits {
        ttl: Millis::new(input.number()),
        token: usize::from(input.byte()).clamp(1, TOKEN_MAX),
    };
    let mut args = Vec::new();
    while !input.is_empty() && args.len() < 12 {
        let length = usize::from(input.byte());
        args.push(input.bytes(length));
    }
    match request::acquire(&args, limits) {
        Ok(acquire) => {
            assert!(acquire.label.len() <= LABEL_MAX);
            check_claim(&args, acquire.claim, limits);
        }
        Err(refusal) => check_refusal(&refusal),
    }
    match request::extend(&args, limits) {
        Ok(extend) => {
            check_claim(&args, extend.claim, limits);
            if let Fencing::Raise(fence) | Fencing::Repair { fence, .. } = extend.fencing {
                assert!(fence > Fence::ZERO && fence <= Fence::MAX);
            }
            if let Fencing::Repair { label, .. } = extend.fencing {
                assert!(label.len() <= LABEL_MAX);
            }
        }
        Err(refusal) => check_refusal(&refusal),
    }
    if let Some(Ok((name, request))) = Request::parse(&args, limits) {
        let (again, _) = resp::unpack(&request.pack(name)).unwrap().unwrap();
        let again: Vec<&[u8]> = again.iter().map(Vec::as_slice).collect();
        assert_eq!(Request::parse(&again, limits).unwrap().unwrap(), (name, request));
    }
    for arg in args {
        if let Err(refusal) = request::token(arg, limits) {
            check_refusal(&refusal);
        }
        match request::fence(arg) {
            Ok(fence) => assert!(fence > Fence::ZERO && fence <= Fence::MAX),
            Err(refusal) => check_refusal(&refusal),
        }
        let text = std::str::from_utf8(arg).ok().filter(|text| text.len() <= 20);
        let is_digits = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let expected = text.filter(is_digits).and_then(|text| text.parse().ok());
        assert_eq!(request::number(arg), expected);
        if let Some(decided) = fact::read(arg) {
            let mut room = [0; SUFFIX_MAX];
            let suffix = fact::suffix(&mut room, decided.ends_at, decided.fence);
            let ttl = decided.ttl.get().to_string();
            let again = fact::read(&[ttl.as_bytes(), suffix].concat());
            let again = again.expect("what is written is read");
            assert_eq!((again.ttl, again.ends_at), (decided.ttl, decided.ends_at));
            assert_eq!(again.fence, decided.fence);
            assert_eq!(request::acquire(&[b"t", arg], limits).ok().map(drop), None);
        }
    }
}

fn check_claim(args: &[&[u8]], claim: lockmod::engine::Claim<'_>, limits: Limits) {
    assert_eq!(claim.token.as_bytes(), args[0]);
    assert!((1..=limits.token).contains(&args[0].len()));
    assert!(!claim.ttl.is_zero() && claim.ttl <= limits.ttl);
}

/// An error reply is one line, and begins with a code word.
fn check_refusal(refusal: &Refusal) {
    let text = refusal.to_string();
    let printable = text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    assert!(printable && text.len() < 1_000, "{text:?}");
    let code = text.split(' ').next().unwrap_or_default();
    assert!(code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase()), "{text:?}");
}
