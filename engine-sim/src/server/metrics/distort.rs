//! Right families to wrong ones, as the faults want them.
//!
//! The order is that of a broken exporter: values first (frozen, zero, NaN), then names (missing, renamed).

use super::family::Family;
use crate::faults::MetricsFaults;

/// Applies every fault of single families. `frozen` is what they were when the faults were set.
pub(super) fn distort(families: &mut Vec<Family>, faults: &MetricsFaults, frozen: &[Family]) {
    for family in families.iter_mut().filter(|f| faults.frozen.contains(&f.name)) {
        if let Some(then) = frozen.iter().find(|then| then.name == family.name) {
            family.samples.clone_from(&then.samples);
        }
    }
    for family in families.iter_mut() {
        let value = match (faults.nan.contains(&family.name), faults.all_zero) {
            (true, _) => f64::NAN,
            (false, true) => 0.0,
            (false, false) => continue,
        };
        family.samples.iter_mut().for_each(|sample| sample.value = value);
    }
    families.retain(|family| !faults.missing.contains(&family.name));
    for family in families {
        if let Some(other) = faults.renamed.get(&family.name) {
            family.name.clone_from(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::family::render;
    use super::*;

    fn families(a: f64, b: f64) -> Vec<Family> {
        vec![Family::gauge("a", "A.", "", a), Family::gauge("b", "B.", "l=\"1\"", b)]
    }

    /// The samples of the distorted text; `a` is 1 and `b` 2, and both were 7 when the faults were set.
    fn check(faults: &MetricsFaults, want: &[&str]) {
        let mut now = families(1.0, 2.0);
        distort(&mut now, faults, &families(7.0, 7.0));
        let text = render(&now);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, want, "{faults:?}");
    }

    #[test]
    fn each_fault_changes_the_families_it_names_and_no_other() {
        let a = || vec!["a".to_owned()];
        let none = MetricsFaults::default;
        check(&none(), &["a 1", "b{l=\"1\"} 2"]);
        check(&MetricsFaults { missing: a(), ..none() }, &["b{l=\"1\"} 2"]);
        check(&MetricsFaults { frozen: a(), ..none() }, &["a 7", "b{l=\"1\"} 2"]);
        check(&MetricsFaults { nan: a(), ..none() }, &["a NaN", "b{l=\"1\"} 2"]);
        check(&MetricsFaults { all_zero: true, ..none() }, &["a 0", "b{l=\"1\"} 0"]);
        let renamed = [("a".to_owned(), "z".to_owned())].into();
        check(&MetricsFaults { renamed, nan: a(), ..none() }, &["z NaN", "b{l=\"1\"} 2"]);
        check(&MetricsFaults { missing: vec!["c".to_owned()], ..none() }, &["a 1", "b{l=\"1\"} 2"]);
    }
}
