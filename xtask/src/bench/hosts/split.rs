//! The balancer before the routers: hands connections out in turn, and knows nothing of what is in them.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};

/// The hidden flag that makes this process the balancer: its address, then the routers'.
pub(super) const FLAG: &str = "--split";

/// Passes on what comes until it is killed.
///
/// # Errors
/// It cannot listen.
pub(super) fn run(words: &[String]) -> Result<()> {
    let (listen, routers) = words.split_first().context("an address to listen on")?;
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    println!("listening on http://{listen}");
    for (client, router) in listener.incoming().zip(routers.iter().cycle()) {
        // A client that is gone, or a router: the client sees it, and counts.
        if let Ok(client) = client
            && let Ok(router) = TcpStream::connect(router)
        {
            join(client, router).ok();
        }
    }
    Ok(())
}

/// Passes both ways, each until its end.
fn join(client: TcpStream, router: TcpStream) -> io::Result<()> {
    for stream in [&client, &router] {
        stream.set_nodelay(true)?;
    }
    let both = [(client.try_clone()?, router.try_clone()?), (router, client)];
    for (mut from, mut to) in both {
        thread::spawn(move || {
            let _ended = io::copy(&mut from, &mut to);
            let _gone = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
