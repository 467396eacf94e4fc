//! `--plot`: the distribution of TTFT of every policy, and for each the requests in flight per engine over time.

use std::path::Path;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoLogRange, LineSeries, Palette, Palette99,
    PathElement, SVGBackend, SeriesLabelPosition, WHITE,
};
use router_policy::Nanos;

use super::record::Run;

const WIDTH: u32 = 1000;
const CDF_HEIGHT: u32 = 420;
const POLICY_HEIGHT: u32 = 220;
/// Points of a line at most: more cannot be seen.
const POINTS_MAX: usize = 500;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What is drawn of one policy.
pub(super) struct Drawn<'a> {
    pub(super) name: &'a str,
    pub(super) run: &'a Run,
    /// Nothing before is part of the distribution.
    pub(super) measured_from: Nanos,
}

/// Writes the picture.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, policies: &[Drawn<'_>]) -> anyhow::Result<()> {
    let svg = svg(policies)?;
    std::fs::write(path, svg).map_err(|e| anyhow!("cannot write {}: {e}", path.display()))
}

fn svg(policies: &[Drawn<'_>]) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let height = CDF_HEIGHT + POLICY_HEIGHT * policies.len() as u32;
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, below) = root.split_vertically(CDF_HEIGHT);
        draw_ttft(&top, policies)?;
        for (area, policy) in below.split_evenly((policies.len().max(1), 1)).iter().zip(policies) {
            draw_in_flight(area, policy)?;
        }
        root.present()?;
    }
    Ok(text)
}

fn draw_ttft(area: &Area<'_>, policies: &[Drawn<'_>]) -> anyhow::Result<()> {
    let lines: Vec<Vec<(f64, f64)>> = policies.iter().map(distribution).collect();
    let all = || lines.iter().flatten().map(|point| point.0);
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let (least, most) = if least < most { (least, most) } else { (0.01, 1.0) };
    let mut chart = ChartBuilder::on(area)
        .caption("TTFT: share of the requests within so many seconds", ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(50)
        .build_cartesian_2d((least..most).log_scale(), 0.0..1.0)?;
    chart.configure_mesh().light_line_style(WHITE).draw()?;
    for (index, (policy, line)) in policies.iter().zip(lines).enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)))?
            .label(policy.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

fn draw_in_flight(area: &Area<'_>, policy: &Drawn<'_>) -> anyhow::Result<()> {
    let rows: Vec<(f64, &[u32])> =
        policy.run.samples.rows().map(|(at, row)| (at.seconds_since(Nanos(0)), row)).collect();
    let rows = thinned(&rows);
    let engines = rows.first().map_or(0, |(_, row)| row.len());
    let last = rows.last().map_or(1.0, |(at, _)| at.max(1.0));
    let most = rows.iter().flat_map(|(_, row)| row.iter().copied()).max().unwrap_or(1).max(1);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: requests in flight per engine over seconds", policy.name), ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..last, 0..most)?;
    chart.configure_mesh().light_line_style(WHITE).draw()?;
    for engine in 0..engines {
        let line = rows.iter().map(|(at, row)| (*at, row[engine]));
        chart.draw_series(LineSeries::new(line, Palette99::pick(engine).stroke_width(1)))?;
    }
    Ok(())
}

/// Points (TTFT, share of the requests within it), by TTFT.
fn distribution(policy: &Drawn<'_>) -> Vec<(f64, f64)> {
    let measured = policy.run.records.iter().filter(|r| r.sent >= policy.measured_from);
    let mut ttft: Vec<f64> = measured.map(|r| r.ttft_seconds().max(1e-4)).collect();
    ttft.sort_by(f64::total_cmp);
    let count = ttft.len() as f64;
    let points: Vec<_> = (1_u32..).zip(ttft).map(|(rank, ttft)| (ttft, f64::from(rank) / count)).collect();
    thinned(&points)
}

/// Every n-th, so that few enough are left, and the last.
fn thinned<T: Copy>(points: &[T]) -> Vec<T> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let is_last_due = points.len() % step == 1 || step == 1;
    points.iter().copied().step_by(step).chain(points.last().copied().filter(|_| !is_last_due)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Record, Samples};
    use super::*;

    fn run(ttft_ms: &[u64]) -> Run {
        let record = |ms: &u64| Record { first_token: Nanos(ms * 1_000_000), ..Record::default() };
        let mut samples = Samples::new(1_000_000_000, 2);
        samples.until(Nanos(5_000_000_000), &[3, 1]);
        Run { records: ttft_ms.iter().map(record).collect(), samples, ..Run::default() }
    }

    #[test]
    fn a_picture_has_a_line_a_policy_and_a_chart_each() {
        let (a, b) = (run(&[10, 20, 500]), run(&[40]));
        let drawn = |name, run| Drawn { name, run, measured_from: Nanos(0) };
        let text = svg(&[drawn("first", &a), drawn("second", &b)]).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for want in ["first: requests in flight", "second: requests in flight", "polyline"] {
            assert!(text.contains(want), "{want}");
        }
        assert_eq!(text, svg(&[drawn("first", &a), drawn("second", &b)]).unwrap());
    }

    #[test]
    fn nothing_measured_is_still_a_picture() {
        let nothing = Run::default();
        assert!(svg(&[Drawn { name: "p", run: &nothing, measured_from: Nanos(0) }]).is_ok());
        assert!(svg(&[]).is_ok());
    }

    #[test]
    fn the_last_point_is_kept() {
        let points: Vec<u32> = (0..1201).collect();
        let few = thinned(&points);
        assert!(few.len() <= POINTS_MAX + 1 && few.last() == Some(&1200), "{}", few.len());
        assert_eq!(thinned(&[1, 2]), [1, 2]);
    }
}
