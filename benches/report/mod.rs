//! The parts that all benchmarks report: the median, and the machine.

/// The median of some figures: one disturbed round does not move it.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The processor and its number of cores.
pub(crate) fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{} ({cores} cores)", model.unwrap_or("unknown processor"))
}

/// The median of some ratios, and their range.
#[must_use]
pub(crate) fn spread(ratios: &[f64]) -> String {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let end = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let (low, high) = (end(0), end(sorted.len().saturating_sub(1)));
    format!("{:.2} ({low:.2} to {high:.2})", median(sorted))
}
