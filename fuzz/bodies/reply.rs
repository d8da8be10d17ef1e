//! What a node answers: garbage, incomplete, or one reply that no later byte changes; and what the
//! client makes of it.

use lockmod::client::Vote;
use lockmod::client::protocol::{acquire_vote, claim_vote, error_vote, fence_vote, lock_info};
use lockmod::client::reply::{Reply, read};

pub(crate) fn run(data: &[u8]) {
    match read(data) {
        Ok(Some((reply, length))) => {
            assert!((1..=data.len()).contains(&length));
            // Alone it is the same, and without its last byte it is not complete.
            assert_eq!(read(&data[..length]), Ok(Some((reply.clone(), length))));
            assert_eq!(read(&data[..length - 1]), Ok(None));
            vote(&reply);
        }
        Ok(None) => {
            if let Some((_, before)) = data.split_last() {
                assert_eq!(read(before), Ok(None), "a byte took a verdict back");
            }
        }
        Err(garbage) => {
            let longer = [data, b"\r\n"].concat();
            assert_eq!(read(&longer), Err(garbage), "garbage does not become a reply");
        }
    }
    let _ = error_vote(&String::from_utf8_lossy(data));
}

fn vote(reply: &Reply) {
    if let Vote::Granted(fence) = acquire_vote(reply) {
        assert_eq!(*reply, Reply::Integer(fence.get().cast_signed()));
        assert!(fence.get() > 0);
    }
    if claim_vote(reply) == Vote::Confirmed {
        assert_eq!(*reply, Reply::Integer(1));
    }
    let _ = fence_vote(reply, Vote::NotHeld);
    if let Ok(info) = lock_info(reply) {
        assert!(!info.state.is_empty());
    }
}
