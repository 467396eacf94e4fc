//! Questions and answers as DNS messages. Pure. No EDNS: what does not fit into 512 bytes comes over TCP, which every
//! server speaks.

use std::net::IpAddr;
use std::time::Duration;

use domain::base::iana::{Rcode, Rtype};
use domain::base::wire::ParseError;
use domain::base::{Message, MessageBuilder, Name};
use domain::rdata::{A, Aaaa, Cname, Srv};

use super::{Answer, Failure, Found, Service};

/// Kind of the records asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    A,
    Aaaa,
    Srv,
}

/// A question for the records of a complete name.
///
/// # Errors
/// It is no name.
pub(super) fn question(name: &str, kind: Kind, id: u16) -> Result<Vec<u8>, Failure> {
    let name = Name::vec_from_str(name).map_err(|_| Failure::NotAName)?;
    let kind = match kind {
        Kind::A => Rtype::A,
        Kind::Aaaa => Rtype::AAAA,
        Kind::Srv => Rtype::SRV,
    };
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(id);
    message.header_mut().set_rd(true);
    let mut message = message.question();
    message.push((name, kind)).map_err(|_| Failure::NotAName)?;
    Ok(message.finish())
}

/// What a server said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The whole answer is to be had over TCP.
    Truncated,
    /// The answer, or that there is none.
    Is(Result<Answer, Failure>),
}

/// Reads what came as the reply to a question; `None` if it is none.
pub(super) fn reply(bytes: &[u8], question: &[u8], kind: Kind) -> Option<Reply> {
    let (message, question) = (Message::from_slice(bytes).ok()?, Message::from_slice(question).ok()?);
    let failed = ![Rcode::NOERROR, Rcode::NXDOMAIN].contains(&message.header().rcode());
    // A server that fails may leave the question out.
    let is_ours = message.is_answer(question)
        || (failed && message.header().qr() && message.header().id() == question.header().id());
    if !is_ours {
        return None;
    }
    Some(match message.header().rcode() {
        Rcode::NXDOMAIN => Reply::Is(Err(Failure::NoName)),
        rcode if failed => Reply::Is(Err(Failure::Refused(rcode.to_string()))),
        _ if message.header().tc() => Reply::Truncated,
        _ => Reply::Is(answer(message, kind).unwrap_or(Err(Failure::Unreadable))),
    })
}

fn answer(message: &Message<[u8]>, kind: Kind) -> Result<Result<Answer, Failure>, ParseError> {
    let name = message.canonical_name().ok_or(ParseError::ShortInput)?;
    let (mut ttl, mut addresses, mut services) = (u32::MAX, Vec::<IpAddr>::new(), Vec::new());
    for record in message.answer()? {
        let record = record?;
        if let Some(alias) = record.to_record::<Cname<_>>()? {
            ttl = ttl.min(alias.ttl().as_secs());
        } else if record.owner() == name {
            ttl = ttl.min(record.ttl().as_secs());
            match kind {
                Kind::A => addresses.extend(record.to_record::<A>()?.map(|a| IpAddr::V4(a.data().addr()))),
                Kind::Aaaa => {
                    addresses.extend(record.to_record::<Aaaa>()?.map(|a| IpAddr::V6(a.data().addr())))
                }
                Kind::Srv => services.extend(record.to_record::<Srv<_>>()?.map(|srv| {
                    let srv = srv.data();
                    let host = srv.target().to_string().trim_end_matches('.').to_ascii_lowercase();
                    (srv.priority(), Service { host, port: srv.port(), weight: srv.weight() })
                })),
            }
        }
    }
    // "." says that there is no such service; what is no host's name can stand in no request.
    services.retain(|(_, service)| service.port != 0 && is_host(&service.host));
    let best = services.iter().map(|(priority, _)| *priority).min();
    services.retain(|(priority, _)| Some(*priority) == best);
    let services: Vec<_> = services.into_iter().map(|(_, service)| service).collect();
    let found = match kind {
        Kind::Srv if !services.is_empty() => Found::Services(services),
        Kind::A | Kind::Aaaa if !addresses.is_empty() => Found::Addresses(addresses),
        _ => return Ok(Err(Failure::NoRecord)),
    };
    Ok(Ok(Answer { found, ttl: Duration::from_secs(u64::from(ttl)) }))
}

fn is_host(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
