/// Replaces an unknown name.
pub const OTHER: &str = "other";

/// NCCL's names of operations, and [`P2P_GROUP`].
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
/// All messages of one launch, for example of an all-to-all or an exchange with a neighbour. Its bytes are those sent
/// to other ranks or those received from them, whichever are more.
pub const P2P_GROUP: u8 = 12;

/// NCCL's names of data types, without `nccl`. `ncclUint8` has no name in NCCL's events and is `other`.
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

/// NCCL's names of algorithms. `other` for point-to-point and for events without an algorithm; `CE` are the copy
/// engines.
pub const ALGORITHMS: &[&str] =
    &[OTHER, "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT", "CE"];

/// NCCL's names of protocols.
pub const PROTOCOLS: &[&str] = &[OTHER, "LL", "LL128", "SIMPLE"];

/// Index of a name in its table; 0 if it is not there.
pub fn position(table: &[&str], name: &[u8]) -> u8 {
    let at = table.iter().position(|known| known.as_bytes() == name);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
}

/// Bytes per element. `other` is `ncclUint8`, the only type without a name.
pub fn type_size(datatype: u8) -> u64 {
    match datatype {
        3 | 4 | 8 => 4,
        5 | 6 | 9 => 8,
        7 | 10 => 2,
        _ => 1,
    }
}
