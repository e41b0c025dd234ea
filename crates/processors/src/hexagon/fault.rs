//! Faults of HMX: `hexagon/hmx.h` in Rust. Both files change together.

/// The checks of the proof in hexagon/hmx_proof.c, in order.
const CHECKS: [&str; 9] = [
    "the first INT8 product",
    "the second INT8 product",
    "the sum of two INT8 products",
    "the long INT8 product",
    "the INT4 product",
    "the sum of two INT4 products",
    "the first fp16 product",
    "the second fp16 product",
    "the third fp16 product",
];

/// Returns why a device with HMX gave up a request.
pub(super) fn reason(fault: u64) -> String {
    let what = describe(fault);
    match fault & 0xff {
        16..48 => format!("the model of HMX refuses an instruction: {what}"),
        _ => format!("HMX can't be used: {what}"),
    }
}

/// Describes a fault. Its upper bits are the number of the check that found it, from 1.
pub(super) fn describe(fault: u64) -> String {
    let what = match fault & 0xff {
        1 => "there is too little VTCM",
        2 => "the DSP did not give HMX to the program",
        3 => "there is no thread for it",
        4 => "the VTCM that the DSP gave is not aligned to 2 KiB",
        5 => "its lock is refused, or is not given in time",
        6 => "the DSP did not give power to it",
        7 => "the DSP's image lacks a function for it",
        16 => "a word is no HMX instruction",
        17 => "the model does not have an instruction",
        18 => "the parse bits of a word do not fit an HMX packet",
        19 => "a packet does not have an activation and then a weight",
        20 => "an instruction reads other registers than its arguments",
        21 => "a packet is not followed by a return",
        32 => "activations and weights have types that do not fit each other",
        33 => "an address is not aligned",
        34 => "an address is outside of VTCM",
        35 => "an operand crosses a boundary of 256 KiB",
        36 => "the number of croutons is out of range",
        37 => "weights end before or after activations",
        38 => "the model does not have fields of a table",
        39 => "an instruction is executed without the lock of HMX",
        48 => "the result differs from that of HVX",
        _ => "the fault is unknown",
    };
    let check = (fault >> 8)
        .checked_sub(1)
        .and_then(|check| CHECKS.get(usize::try_from(check).ok()?));
    match check {
        Some(check) => format!("{what}, in {check} of its proof"),
        None => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_of_the_device_has_its_own_description() {
        let header = include_str!("../../../../hexagon/hmx.h");
        let faults = header.lines().filter_map(|line| {
            let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
            name.starts_with("FAULT_").then(|| number.parse().ok())?
        });
        let mut described: Vec<_> = faults.filter(|fault| *fault != 0).map(describe).collect();
        assert!(!described.contains(&describe(255)), "{described:#?}");
        let count = described.len();
        described.sort();
        described.dedup();
        assert_eq!((described.len(), count), (22, 22));
    }
}
