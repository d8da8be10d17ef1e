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

/// The median of some ratios, and from where to where they lie.
#[must_use]
pub(crate) fn spread(ratios: &[f64]) -> String {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let end = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let (low, high) = (end(0), end(sorted.len().saturating_sub(1)));
    format!("{:.2} ({low:.2} to {high:.2})", median(sorted))
}
