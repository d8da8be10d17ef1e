//! What a node answers: garbage, incomplete, or one reply that no later byte changes; and what the
//! client makes of it.

use lockmod::client::Vote;
use lockmod::client::reading::{
    acquire_vote, error_vote, extend_vote, lock_info, raise_vote, release_vote,
};
use lockmod::wire::resp::{Reply, Version, read, unpack, write};

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
    let _ = unpack(data);
    let _ = error_vote(&String::from_utf8_lossy(data));
}

fn vote(reply: &Reply) {
    if let Vote::Granted(fence) = acquire_vote(reply) {
        assert_eq!(*reply, Reply::Integer(fence.get().cast_signed()));
        assert!(fence.get() > 0);
    }
    for vote in [extend_vote(reply), release_vote(reply)] {
        if vote == Vote::Confirmed {
            assert_eq!(*reply, Reply::Integer(1));
        }
    }
    let _ = (raise_vote(reply), lock_info(reply));
    let mut bytes = Vec::new();
    write(reply, Version::Resp3, &mut bytes);
    // An error that was no text is one now, and may be longer than what is read.
    if let Ok(Some((again, length))) = read(&bytes) {
        assert_eq!(length, bytes.len());
        let mut twice = Vec::new();
        write(&again, Version::Resp3, &mut twice);
        assert_eq!(twice, bytes, "what is written is read");
    }
}
