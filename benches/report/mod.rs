//! What every benchmark says of its figures: the middle one, and the machine.

/// The middle one of some figures: one disturbed round does not move it.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The processor and how many cores of it there are.
pub(crate) fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{} ({cores} cores)", model.unwrap_or("unknown processor"))
}
