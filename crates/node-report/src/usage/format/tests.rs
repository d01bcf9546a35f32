use proptest::prelude::*;

use super::*;

fn head(gpus: usize, rails: usize) -> Head {
    Head {
        gpus: vec![HeadGpu::default(); gpus],
        rails: vec![HeadRail::default(); rails],
        ..Head::new("n1", 7, 0)
    }
}

fn sample(folded: u16, number: f32) -> Sample {
    let mut sample = Sample {
        start: 1_700_000_000_123,
        seconds: 5.0,
        folded,
        state: State::Yielded,
        gpus: vec![Values::default(); 2],
        rails: vec![Values::default()],
        host: Values::default(),
    };
    sample.gpus[0].put(GpuField::Graphics, Some(0.0));
    let (min, max) = if folded > 1 { (number / 2.0, number * 2.0) } else { (number, number) };
    sample.gpus[1].set(GpuField::ProcessWait, Some(Value { mean: number, min, max }));
    sample.host.put(HostField::Cpu, Some(3.5));
    sample
}

fn stream(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        record.write(&mut out).unwrap();
    }
    out
}

#[test]
fn written_records_are_read_back() {
    let note = Note { at: 5, what: "x".to_owned() };
    let end = End {
        at: 9,
        cpu_s: 0.5,
        memory_mib: 12.0,
        oom_kills: Some(0),
        memory_peak_mib: None,
        cpus_allowed: Some(4.0),
    };
    let all = vec![
        Record::Head(head(2, 1)),
        Record::Sample(sample(1, 0.1)),
        Record::Sample(sample(12, 96.0)),
        Record::Note(note),
        Record::End(end),
    ];
    let bytes = stream(&all);
    let mut records = Records::new(&bytes);
    assert_eq!(records.by_ref().collect::<Vec<_>>(), all);
    assert_eq!(records.damage(), None);
}

#[test]
fn minimum_and_maximum_are_rounded_outwards() {
    for number in [0.1_f32, 99.97, 1979.9, 5.5e10] {
        let bytes = stream(&[Record::Head(head(2, 1)), Record::Sample(sample(2, number))]);
        let Some(Record::Sample(read)) = Records::new(&bytes).nth(1) else { panic!("no sample") };
        let value = read.gpus[1].get(GpuField::ProcessWait).unwrap();
        assert!(value.min <= number / 2.0 && value.max >= number * 2.0, "{value:?}");
        assert!(value.min > number / 2.0 * 0.992 && value.max < number * 2.0 * 1.008, "{value:?}");
    }
}

/// No report has their extremes, and a day of a full node has to fit into its limit.
#[test]
fn fields_that_no_report_has_keep_the_mean_only() {
    let mut folded = sample(12, 1.0);
    folded.gpus[1].set(GpuField::PowerBrake, Some(Value { mean: 3.0, min: 1.0, max: 9.0 }));
    let bytes = stream(&[Record::Head(head(2, 1)), Record::Sample(folded)]);
    let Some(Record::Sample(read)) = Records::new(&bytes).nth(1) else { panic!("no sample") };
    assert_eq!(read.gpus[1].get(GpuField::PowerBrake), Some(Value { mean: 3.0, min: 3.0, max: 3.0 }));
}

#[test]
fn torn_tail_loses_only_the_torn_record() {
    let whole = stream(&[Record::Head(head(2, 1)), Record::Sample(sample(1, 1.0))]);
    let two = stream(&[Record::Sample(sample(1, 2.0))]);
    for cut in 1..two.len() {
        let bytes = [&whole[..], &two[..cut]].concat();
        let mut records = Records::new(&bytes);
        assert_eq!(records.by_ref().count(), 2, "{cut}");
        assert_eq!(whole_bytes(&bytes), whole.len());
        assert!(records.damage().is_some());
    }
}

#[test]
fn flipped_bit_is_detected() {
    let bytes = stream(&[Record::Head(head(2, 1)), Record::Sample(sample(1, 1.0))]);
    for place in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[place] ^= 4;
        let mut records = Records::new(&bad);
        assert!(records.by_ref().count() < 2, "{place}");
        assert!(records.damage().is_some(), "{place}");
    }
}

#[test]
fn reader_uses_field_names_and_skips_unknown_ones() {
    let mut newer = head(1, 0);
    newer.gpu_fields = vec!["sm_percent".into(), "warp_drive".into(), "power_w".into()];
    newer.rail_fields = Vec::new();
    newer.host_fields = Vec::new();
    let mut bytes = stream(&[Record::Head(newer)]);
    let payload = [
        &7_u64.to_le_bytes()[..],
        &5_f32.to_le_bytes(),
        &1_u16.to_le_bytes(),
        &[0, 0b10_10_10],
        &50_f32.to_le_bytes(),
        &1_f32.to_le_bytes(),
        &700_f32.to_le_bytes(),
    ]
    .concat();
    for (kind, payload) in [(b'Z', &b"?"[..]), (b'S', &payload)] {
        bytes.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
        bytes.push(kind);
        bytes.extend(sum(kind, payload).to_le_bytes());
        bytes.extend(payload);
    }
    let mut records = Records::new(&bytes);
    let Some(Record::Sample(sample)) = records.nth(1) else { panic!("{records:?}") };
    assert_eq!(sample.gpus[0].mean(GpuField::Power), Some(700.0));
    assert_eq!(sample.gpus[0].mean(GpuField::Sm), Some(50.0));
    assert_eq!(sample.gpus[0].mean(GpuField::Tensor), None);
    assert_eq!(records.next(), None);
    assert_eq!(records.damage(), None);
}

/// Eight GPUs and eight ports with every value changing: the largest case.
#[test]
fn day_of_a_full_node_stays_below_its_limit() {
    let mut minute = Sample { folded: 12, seconds: 60.0, ..Sample::default() };
    let value = Some(Value { mean: 1.0, min: 0.5, max: 2.0 });
    minute.gpus = vec![Values::default(); 8];
    minute.rails = vec![Values::default(); 8];
    for gpu in &mut minute.gpus {
        GpuField::ALL.iter().for_each(|field| gpu.set(*field, value));
    }
    for rail in &mut minute.rails {
        RailField::ALL.iter().for_each(|field| rail.set(*field, value));
    }
    HostField::ALL.iter().for_each(|field| minute.host.set(*field, value));
    let fine = Sample { folded: 1, ..minute.clone() };
    let (minutes, fine) = (stream(&[Record::Sample(minute)]).len(), stream(&[Record::Sample(fine)]).len());
    assert!(minutes * 1440 + fine * 360 <= 4 << 20, "{minutes} {fine}");
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0..400_usize) {
        let mut good = stream(&[Record::Head(head(2, 1)), Record::Sample(sample(3, 7.0))]);
        let at = cut.min(good.len());
        good.splice(at.., bytes);
        let mut records = Records::new(&good);
        while records.next().is_some() {}
    }

    /// With a correct checksum, so that the payload is parsed.
    #[test]
    fn no_payload_makes_it_panic(kind in prop::sample::select(b"HSMNE".to_vec()), payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = stream(&[Record::Head(head(2, 1))]);
        bytes.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
        bytes.push(kind);
        bytes.extend(sum(kind, &payload).to_le_bytes());
        bytes.extend(&payload);
        let mut records = Records::new(&bytes);
        while records.next().is_some() {}
    }
}
