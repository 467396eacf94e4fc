//! Events and their strange values, at random.

use proptest::prelude::*;
use router_policy::prefix::ChainBuilder;
use router_policy::{BackendSpec, InFlight, Nanos, Report, RequestShape, Signal, Usage, Why};

use crate::ROWS;
use crate::common::KEY;

/// A prompt of `blocks` blocks, of which the first few are everybody's.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    session: u8,
    blocks: usize,
    stream: bool,
    is_shaped: bool,
    model: Option<u8>,
}

impl Prompt {
    pub(crate) fn shape(&self) -> RequestShape {
        let mut chain = ChainBuilder::new(&KEY, b"m");
        for block in 0..self.blocks {
            chain.update(&[if block < 3 { 0 } else { self.session }; 256]);
        }
        chain.update(b"a partial block");
        RequestShape {
            model: self.model.map(|m| name(m).into()),
            chain: chain.finish(),
            shaped: self.is_shaped,
            stream: self.stream,
            session: Some(self.session.into()),
            ..RequestShape::default()
        }
    }
}

pub(crate) fn name(model: u8) -> &'static str {
    ["m", "n"][usize::from(model) % 2]
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// By so many nanoseconds; back, too.
    Time(i64),
    Set(usize, BackendSpec),
    Remove(usize),
    Ready(usize, bool),
    List(usize, u8),
    ReportBegins(usize),
    Report(usize, Report),
    Others(usize, InFlight),
    ClearCache(usize),
    Foreign(usize, Prompt),
    Pick(Prompt, Option<usize>),
    Force(Prompt, usize),
    FirstByte(usize),
    Finish(usize, usize, Usage),
}

/// Small numbers, and the largest.
fn odd_u32() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..20, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn odd_u64() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..5000, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn signal<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Signal<T>> {
    let at = prop_oneof![any::<u32>().prop_map(u64::from), Just(u64::MAX)];
    prop_oneof![
        3 => (value, at).prop_map(|(value, at)| Signal::Known { value, at: Nanos(at) }),
        1 => Just(Signal::Unknown(Why::Malformed)),
    ]
}

fn spec() -> impl Strategy<Value = BackendSpec> {
    let weight =
        prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 0.5, 1e300]);
    let options = (
        prop::option::of(0_u8..2),
        prop::option::of(odd_u32()),
        prop::option::of(odd_u32()),
        prop::option::of(odd_u64()),
        prop::option::of(weight),
    );
    options.prop_map(|(model, max_in_flight, max_num_seqs, kv_tokens, weight)| BackendSpec {
        model: model.map(|m| name(m).to_owned()),
        max_in_flight,
        max_num_seqs,
        kv_tokens,
        weight,
        ..BackendSpec::default()
    })
}

fn report() -> impl Strategy<Value = Report> {
    let fingerprint = prop::option::of(0_u64..2);
    (signal(odd_u32()), signal(odd_u32()), signal(odd_u64()), signal(odd_u32()), fingerprint).prop_map(
        |(running, waiting, kv_tokens, seats, fingerprint)| Report {
            running,
            waiting,
            kv_tokens,
            seats,
            fingerprint,
            ..Report::default()
        },
    )
}

fn prompt() -> impl Strategy<Value = Prompt> {
    (1_u8..5, 0_usize..40, any::<bool>(), prop::bool::weighted(0.9), prop::option::weighted(0.2, 0_u8..2))
        .prop_map(|(session, blocks, stream, is_shaped, model)| Prompt {
            session,
            blocks,
            stream,
            is_shaped,
            model,
        })
}

fn usage() -> impl Strategy<Value = Usage> {
    (prop::option::of(odd_u64()), prop::option::of(odd_u64()), odd_u64()).prop_map(
        |(prompt_tokens, completion_tokens, answer_bytes)| Usage {
            prompt_tokens,
            completion_tokens,
            answer_bytes,
        },
    )
}

fn in_flight() -> impl Strategy<Value = InFlight> {
    (odd_u32(), odd_u64(), odd_u64()).prop_map(|(requests, q_tokens, c_tokens)| InFlight {
        requests,
        q_tokens,
        c_tokens,
    })
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let row = || 0..ROWS;
    prop_oneof![
        4 => (-2_000_000_000_i64..4_000_000_000).prop_map(Op::Time),
        2 => (row(), spec()).prop_map(|(row, spec)| Op::Set(row, spec)),
        1 => row().prop_map(Op::Remove),
        3 => (row(), prop::bool::weighted(0.9)).prop_map(|(row, ready)| Op::Ready(row, ready)),
        1 => (row(), 0_u8..2).prop_map(|(row, model)| Op::List(row, model)),
        1 => row().prop_map(Op::ReportBegins),
        2 => (row(), report()).prop_map(|(row, report)| Op::Report(row, report)),
        1 => (row(), in_flight()).prop_map(|(row, others)| Op::Others(row, others)),
        1 => row().prop_map(Op::ClearCache),
        2 => (row(), prompt()).prop_map(|(row, prompt)| Op::Foreign(row, prompt)),
        8 => (prompt(), prop::option::weighted(0.2, row())).prop_map(|(prompt, tried)| Op::Pick(prompt, tried)),
        2 => (prompt(), row()).prop_map(|(prompt, row)| Op::Force(prompt, row)),
        5 => any::<prop::sample::Index>().prop_map(|at| Op::FirstByte(at.index(1 << 16))),
        6 => (any::<prop::sample::Index>(), 0_usize..4, usage())
            .prop_map(|(at, outcome, usage)| Op::Finish(at.index(1 << 16), outcome, usage)),
    ]
}
