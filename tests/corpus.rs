//! What fuzzing has found worth keeping, as ordinary tests: each input of `fuzz/corpus`, and
//! beginnings and mutations of it, through the functions that `make fuzz` feeds.
//!
//! A crash that fuzzing finds is kept there under a name that says what it was.

#[path = "../fuzz/bodies/input.rs"]
mod input;
#[path = "../fuzz/bodies/lock.rs"]
mod lock;
#[path = "../fuzz/bodies/reply.rs"]
mod reply;
#[path = "../fuzz/bodies/request.rs"]
mod request;
#[path = "../fuzz/bodies/state.rs"]
mod state;

#[path = "../fuzz/bodies/feed.rs"]
mod feed;

use feed::feed;

#[test]
fn a_lock_is_sound_whatever_bytes_it_was_read_from() {
    feed("lock", lock::run);
}

#[test]
fn replies_are_read_whole_or_not_at_all() {
    feed("reply", reply::run);
}

#[test]
fn requests_are_within_limits_or_refused_in_one_line() {
    feed("request", request::run);
}

#[test]
fn state_files_are_never_taken_for_more_than_they_say() {
    feed("state", state::run);
}
