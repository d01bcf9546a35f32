//! A reliable connection from a device to itself.
#![allow(
    unsafe_code,
    reason = "work requests borrow memory that the device reads and writes until they complete"
)]

use std::time::{Duration, Instant};

use ibverbs::{CompletionQueue, Device, MemoryRegion, QueuePair, ibv_qp_type, ibv_wc};

/// Size of one message, bytes.
const MESSAGE: usize = 1024 * 1024;
/// Maximum number of messages in flight.
const DEPTH: usize = 8;
/// Duration of the measurement: long enough for a rate, short enough for a prolog.
const MEASURED: Duration = Duration::from_millis(200);
/// Timeout after which a device without completions counts as failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// `IBV_GID_TYPE_ROCE_V2`, for which the crate has only the type.
const ROCE_V2: ibverbs::ibv_gid_type = 2;
/// Flag in the ids of receive requests.
const RECEIVES: u64 = 1 << 32;

/// Sends data from one half of a buffer to the other for a while, and verifies it. Returns bytes and Gb/s.
pub(crate) fn run(device: &Device<'_>) -> Result<(u64, f64), String> {
    let context = device.open().map_err(|why| format!("open: {why}"))?;
    let entries = i32::try_from(4 * DEPTH).map_err(|why| why.to_string())?;
    let queue = context.create_cq(entries, 0).map_err(|why| format!("completion queue: {why}"))?;
    let domain = context.alloc_pd().map_err(|why| format!("protection domain: {why}"))?;
    let mut builder = domain.create_qp(&queue, &queue, ibv_qp_type::IBV_QPT_RC);
    let depth = u32::try_from(DEPTH).map_err(|why| why.to_string())?;
    builder.set_max_send_wr(depth).set_max_recv_wr(2 * depth).allow_remote_rw();
    // RoCE has no LIDs, so the port is addressed by the first routable entry of its GID table.
    if let Some(index) = gid_index(&context) {
        builder.set_gid_index(index);
    }
    let prepared = builder.build().map_err(|why| format!("queue pair: {why}"))?;
    let own = prepared.endpoint();
    let mut pair = prepared.handshake(own).map_err(|why| format!("connect: {why}"))?;
    let mut source = domain.allocate::<u8>(MESSAGE).map_err(|why| format!("memory: {why}"))?;
    let mut sink = domain.allocate::<u8>(MESSAGE * DEPTH).map_err(|why| format!("memory: {why}"))?;
    for (place, byte) in source.iter_mut().enumerate() {
        *byte = (place % 251) as u8;
    }
    let sent = exchange(&mut pair, &queue, &mut source, &mut sink);
    // The queue pair is dropped first, because its last requests can still refer to the memory.
    drop(pair);
    let (bytes, took) = sent?;
    // Each slot that a message was received in, not only the first: a fault can depend on the address.
    let written = (bytes as usize / MESSAGE).min(DEPTH);
    let whole = sink.chunks(MESSAGE).take(written).all(|message| message == &source[..]);
    if !whole {
        return Err("what arrived is not what was sent".to_owned());
    }
    Ok((bytes, bytes as f64 * 8.0 / took.as_secs_f64() / 1e9))
}

/// Ethernet ports need a GID; InfiniBand ports use the LID.
fn gid_index(context: &ibverbs::Context) -> Option<u32> {
    let table = context.gid_table();
    let v2 = table.iter().find(|entry| entry.gid_type == ROCE_V2);
    v2.map(|entry| entry.gid_index)
}

fn exchange(
    pair: &mut QueuePair<'_>,
    queue: &CompletionQueue<'_>,
    source: &mut MemoryRegion<u8>,
    sink: &mut MemoryRegion<u8>,
) -> Result<(u64, Duration), String> {
    let slot = |number: u64| {
        let place = (number as usize % DEPTH) * MESSAGE;
        place..place + MESSAGE
    };
    let (mut posted, mut sent, mut received) = (0_u64, 0_u64, 0_u64);
    let began = Instant::now();
    let mut moved = began;
    let mut done = [ibv_wc::default(); 4 * DEPTH];
    loop {
        let going = began.elapsed() < MEASURED;
        while going && posted < sent.min(received) + DEPTH as u64 {
            // SAFETY: both regions outlive the pair, which is dropped first, and no one reads a slot before its
            // completion has been polled.
            unsafe { pair.post_receive(sink, slot(posted), RECEIVES | posted) }
                .map_err(|why| format!("post receive: {why}"))?;
            // SAFETY: as above; the source is only read from.
            unsafe { pair.post_send(source, .., posted) }.map_err(|why| format!("post send: {why}"))?;
            posted += 1;
        }
        if !going && sent == posted && received == posted {
            return Ok((posted * MESSAGE as u64, began.elapsed()));
        }
        let completed = queue.poll(&mut done).map_err(|why| format!("poll: {why}"))?;
        for one in completed.iter() {
            if let Some((status, vendor)) = one.error() {
                return Err(format!("completion: {status:?} (vendor {vendor})"));
            }
            if one.wr_id() & RECEIVES == 0 {
                sent += 1
            } else {
                received += 1
            }
            moved = Instant::now();
        }
        if moved.elapsed() > PATIENCE {
            return Err(format!("{} of {posted} messages completed", sent.min(received)));
        }
        if completed.is_empty() {
            std::thread::yield_now();
        }
    }
}
