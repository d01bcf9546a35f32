/// What stands for a name that is not known.
pub const OTHER: &str = "other";

/// What NCCL calls its operations, and [`P2P_GROUP`].
pub const OPERATIONS: &[&str] = &[
    OTHER,
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "Broadcast",
    "Gather",
    "Recv",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "Send",
    "SendRecv",
    "P2pGroup",
    "PutSignal",
    "Signal",
    "WaitSignal",
];
/// `Send`, one message.
pub const SEND: u8 = 10;
/// `Recv`, one message.
pub const RECV: u8 = 6;
/// All messages that went out with one launch: what an all-to-all or an exchange with a neighbour is made of.
/// Its bytes are those sent to other ranks, or those received where these are more.
pub const P2P_GROUP: u8 = 12;

/// What NCCL calls its datatypes, without `nccl`. `ncclUint8` has no name there and is `other`.
pub const DATATYPES: &[&str] = &[
    OTHER,
    "Int8",
    "Uint8",
    "Int32",
    "Uint32",
    "Int64",
    "Uint64",
    "Float16",
    "Float32",
    "Float64",
    "Bfloat16",
    "Float8e4m3",
    "Float8e5m2",
];

/// What NCCL calls its algorithms. Point to point, and what never says, is `other`; `CE` are the copy engines.
pub const ALGORITHMS: &[&str] =
    &[OTHER, "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT", "CE"];

/// What NCCL calls its protocols.
pub const PROTOCOLS: &[&str] = &[OTHER, "LL", "LL128", "SIMPLE"];

/// Where a name stands in its table; 0 where it is not there.
pub fn position(table: &[&str], name: &[u8]) -> u8 {
    let at = table.iter().position(|known| known.as_bytes() == name);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
}

/// Bytes of one element. `other` is `ncclUint8`, the only one without a name.
pub fn type_size(datatype: u8) -> u64 {
    match datatype {
        3 | 4 | 8 => 4,
        5 | 6 | 9 => 8,
        7 | 10 => 2,
        _ => 1,
    }
}
