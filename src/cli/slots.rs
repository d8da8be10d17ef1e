//! Makes local servers one Redis Cluster.

use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::failure::Failure;
use crate::engine::SLOTS;
use crate::wire::resp::{Reader, Reply, pack};

/// How long they may take to agree.
const AGREE_MAX: Duration = Duration::from_secs(30);
/// How often they are asked.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Gives each of the first `masters` servers, by port and bus port, its share of the slots, and
/// makes the others their replicas in turn. Waits until all servers know the shares.
pub(super) async fn share_out(servers: &[(u16, u16)], masters: usize) -> Result<(), Failure> {
    let (count, slots) = (masters, usize::from(SLOTS));
    for (index, (port, _)) in servers[..masters].iter().enumerate() {
        let (first, end) = (slots * index / count, slots * (index + 1) / count);
        tell(*port, &format!("CLUSTER ADDSLOTSRANGE {first} {}", end - 1)).await?;
        // Two servers with the same epoch would first need to resolve that.
        tell(*port, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).await?;
    }
    let first = servers.first().map_or(0, |(port, _)| *port);
    for (port, bus) in &servers[1..] {
        tell(first, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}")).await?;
    }
    let deadline = Instant::now() + AGREE_MAX;
    let agreed = format!("cluster_known_nodes:{}\r\n", servers.len());
    for (port, _) in servers {
        loop {
            let told = tell(*port, "CLUSTER INFO").await?;
            if told.contains("cluster_state:ok") && told.contains(&agreed) {
                break;
            }
            pause(*port, deadline).await?;
        }
    }
    for (index, (port, _)) in servers[masters..].iter().enumerate() {
        let (master, _) = servers[index % masters];
        let id = tell(master, "CLUSTER MYID").await?;
        tell(*port, &format!("CLUSTER REPLICATE {id}")).await?;
    }
    for (port, _) in &servers[masters..] {
        while !tell(*port, "INFO replication").await?.contains("master_link_status:up") {
            pause(*port, deadline).await?;
        }
    }
    Ok(())
}

/// A pause before the server at this port is asked again.
async fn pause(port: u16, deadline: Instant) -> Result<(), Failure> {
    if Instant::now() >= deadline {
        let text = format!("the Cluster of 127.0.0.1:{port} does not come about");
        return Err(Failure::new(Failure::FAILED, text));
    }
    sleep(ASK_EVERY).await;
    Ok(())
}

/// Sends one command, and returns its reply.
async fn tell(port: u16, command: &str) -> Result<String, Failure> {
    let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(&pack(&args)).await?;
    let mut reader = Reader::default();
    let failed = |said: &str| {
        let text = format!("127.0.0.1:{port} refuses {command}: {said}");
        Failure::new(Failure::FAILED, text)
    };
    loop {
        let mut chunk = [0; 4096];
        let length = stream.read(&mut chunk).await?;
        reader.take(&chunk[..length]);
        match reader.next_reply().map_err(|garbage| failed(garbage.0))? {
            Some(Reply::Error(text)) => return Err(failed(&text)),
            Some(Reply::Text(text)) => return Ok(String::from_utf8_lossy(&text).into_owned()),
            Some(_) => return Ok(String::new()),
            None if length == 0 => return Err(failed("no answer")),
            None => {}
        }
    }
}
