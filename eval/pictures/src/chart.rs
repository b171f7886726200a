//! A chart: lines of points over one linear or logarithmic axis each, drawn as SVG or PNG.
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use std::path::Path;

const SIZE: (u32, u32) = (1240, 600);
/// Width of the chart; the names of the lines are to its right.
const CHART_WIDTH: u32 = 900;
const NAME_HEIGHT: i32 = 22;
const FONT: &str = "sans-serif";
/// The first six remain apart for colour-blind readers [Okabe and Ito 2008].
const COLOURS: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(150, 140, 30),
    RGBColor(80, 40, 120),
    RGBColor(0, 70, 60),
    RGBColor(170, 20, 60),
    RGBColor(140, 190, 110),
];

const PAPER_COLOURS: [RGBColor; 3] = [RGBColor(0, 0, 0), RGBColor(110, 110, 110), RGBColor(160, 160, 160)];

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChartLine {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// A paper's points: hollow, on a thin line.
    pub(crate) is_of_paper: bool,
}

impl ChartLine {
    /// Colour and width; `at` is its place among the lines.
    fn style(&self, at: usize) -> (RGBColor, u32) {
        if self.is_of_paper { (PAPER_COLOURS[at % PAPER_COLOURS.len()], 1) } else { (COLOURS[at % COLOURS.len()], 2) }
    }
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChartAxis {
    pub(crate) label: String,
    pub(crate) is_logarithmic: bool,
}

impl ChartAxis {
    pub(crate) fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), is_logarithmic: false }
    }

    pub(crate) fn logarithmic(label: &str) -> Self {
        Self { label: label.to_owned(), is_logarithmic: true }
    }

    /// The place on the axis; a logarithm has none for values up to zero.
    fn place(&self, value: f64) -> Option<f64> {
        let place = if self.is_logarithmic { value.log10() } else { value };
        place.is_finite().then_some(place)
    }

    /// The text of a place; of a long logarithmic axis, only powers of ten have one.
    fn text(&self, place: f64, range: &std::ops::Range<f64>) -> String {
        if self.is_logarithmic && range.end - range.start > 2.0 && (place - place.round()).abs() > 0.01 {
            return String::new();
        }
        let value = if self.is_logarithmic { 10_f64.powf(place) } else { place };
        match value.abs() {
            0.0 => "0".to_owned(),
            size if size >= 1e6 => format!("{} M", shortest(value / 1e6, 3)),
            size if size >= 100.0 => format!("{value:.0}"),
            _ => shortest(value, 4),
        }
    }

    /// The range of places, with a margin.
    fn range(&self, values: impl Iterator<Item = f64>) -> Option<std::ops::Range<f64>> {
        let places: Vec<f64> = values.filter_map(|value| self.place(value)).collect();
        let low = places.iter().copied().reduce(f64::min)?;
        let high = places.iter().copied().reduce(f64::max)?;
        let low = if self.is_logarithmic { low } else { low.min(0.0) };
        let margin = ((high - low) * 0.05).max(0.05);
        Some(low - if self.is_logarithmic { margin } else { 0.0 }..high + margin)
    }
}

/// The value with at most `digits` digits after the point, and no zeros at the end.
fn shortest(value: f64, digits: usize) -> String {
    format!("{value:.digits$}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    /// Name of the file without its extension.
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) x: ChartAxis,
    pub(crate) y: ChartAxis,
    pub(crate) lines: Vec<ChartLine>,
}

/// Makes the font known that PNG files draw with; SVG files name it only.
pub(crate) fn use_font(bytes: Vec<u8>) -> Result<(), String> {
    // The font lives as long as the program.
    register_font(FONT, FontStyle::Normal, Box::leak(bytes.into_boxed_slice()))
        .map_err(|_| "not a TrueType or OpenType font".to_owned())
}

impl Chart {
    /// Draws into a file; the extension decides how.
    pub(crate) fn draw(&self, path: &Path) -> Result<(), String> {
        if path.extension().is_some_and(|extension| extension == "svg") {
            self.draw_on(SVGBackend::new(path, SIZE).into_drawing_area())
        } else {
            self.draw_on(BitMapBackend::new(path, SIZE).into_drawing_area())
        }
    }

    fn draw_on<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>) -> Result<(), String> {
        self.plot(&area).and_then(|()| area.present()).map_err(|error| error.to_string())
    }

    fn plot<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let ranges = (self.x.range(points().map(|point| point.0)), self.y.range(points().map(|point| point.1)));
        let (Some(x_range), Some(y_range)) = ranges else { return Ok(()) };
        let (left, right) = area.split_horizontally(CHART_WIDTH);
        self.name_lines(&right)?;
        let mut chart = ChartBuilder::on(&left)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(45)
            .y_label_area_size(85)
            .build_cartesian_2d(x_range.clone(), y_range.clone())?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .label_style((FONT, 14))
            .x_label_formatter(&|place| self.x.text(*place, &x_range))
            .y_label_formatter(&|place| self.y.text(*place, &y_range))
            .draw()?;
        for (at, line) in self.lines.iter().enumerate() {
            let (colour, width) = line.style(at);
            let place = |&(x, y): &(f64, f64)| Some((self.x.place(x)?, self.y.place(y)?));
            let places: Vec<(f64, f64)> = line.points.iter().filter_map(place).collect();
            chart.draw_series(LineSeries::new(places.iter().copied(), colour.stroke_width(width)))?;
            let marker = if line.is_of_paper { colour.stroke_width(1) } else { colour.filled() };
            chart.draw_series(places.iter().map(|place| Circle::new(*place, 4, marker)))?;
        }
        Ok(())
    }

    /// Writes the names of the lines, each with a piece of its line.
    fn name_lines<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        for ((at, line), y) in self.lines.iter().enumerate().zip((50..).step_by(NAME_HEIGHT as usize)) {
            let (colour, width) = line.style(at);
            area.draw(&PathElement::new([(0, y), (22, y)], colour.stroke_width(width)))?;
            let marker = if line.is_of_paper { colour.stroke_width(1) } else { colour.filled() };
            area.draw(&Circle::new((11, y), 4, marker))?;
            area.draw(&Text::new(line.name.as_str(), (30, y - 7), (FONT, 14)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let line = |name: &str, is_of_paper| ChartLine {
            name: name.to_owned(),
            points: vec![(1.0, 10.0), (10.0, 1000.0), (100.0, 0.0)],
            is_of_paper,
        };
        Chart {
            file: "f".to_owned(),
            title: "a title".to_owned(),
            x: ChartAxis::logarithmic("an axis"),
            y: ChartAxis::logarithmic("another"),
            lines: vec![line("ours", false), line("the paper", true)],
        }
    }

    #[test]
    fn both_formats_are_drawn_with_their_texts_and_a_value_without_logarithm_is_left_out() {
        use_font(std::fs::read(crate::FONT_FILE).unwrap()).unwrap();
        let dir = std::env::temp_dir().join(format!("pictures-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (svg, png) = (dir.join("f.svg"), dir.join("f.png"));
        chart().draw(&svg).unwrap();
        chart().draw(&png).unwrap();
        let text = std::fs::read_to_string(&svg).unwrap();
        for part in ["a title", "an axis", "another", "ours", "the paper"] {
            assert!(text.contains(part), "{part} missing");
        }
        // Two points of each line, since the third has no logarithm, and one at each name.
        assert_eq!(text.matches("<circle").count(), 6);
        let bytes = std::fs::read(&png).unwrap();
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 5000, "{} bytes", bytes.len());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn linear_axes_begin_at_zero() {
        let range = ChartAxis::linear("x").range([5.0, 10.0].into_iter()).unwrap();
        assert_eq!(range.start, 0.0);
        assert!(range.end > 10.0);
        assert_eq!(ChartAxis::logarithmic("x").range([0.0].into_iter()), None);
    }

    #[test]
    fn places_are_labelled_with_short_values() {
        let (linear, logarithmic) = (ChartAxis::linear("x"), ChartAxis::logarithmic("x"));
        let texts = [0.0, 0.25, 12.5, 1000.0, 2_500_000.0].map(|value| linear.text(value, &(0.0..1.0)));
        assert_eq!(texts, ["0", "0.25", "12.5", "1000", "2.5 M"]);
        assert_eq!([2.0, 2.5].map(|place| logarithmic.text(place, &(0.0..3.0))), ["100", ""]);
        assert_eq!(logarithmic.text(2.5, &(2.0..3.0)), "316");
    }
}
