//! Pictures of the papers' figures from result rows: `pictures RESULTS_DIR PAPERS_FILE OUTPUT_DIR [FONT_FILE]`.
//!
//! Every point of a picture is a row: ours and the peers' from `eval/results`, the papers' from `eval/papers.jsonl`. A
//! figure without rows is left out. Each picture is written as SVG and as PNG.
#![forbid(unsafe_code)]
mod chart;
mod figures;
mod rows;

use std::path::Path;
use std::process::ExitCode;

/// Debian's package fonts-dejavu-core.
const FONT_FILE: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(files) => {
            files.iter().for_each(|file| println!("{file}"));
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("pictures: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<Vec<String>, String> {
    let [results, papers, output, font @ ..] = words else {
        return Err("expected RESULTS_DIR PAPERS_FILE OUTPUT_DIR [FONT_FILE]".to_owned());
    };
    let font = font.first().map_or(FONT_FILE, String::as_str);
    let bytes = std::fs::read(font)
        .map_err(|error| format!("{font}: {error}; install Debian's package fonts-dejavu-core, or name a font file"))?;
    chart::use_font(bytes).map_err(|error| format!("{font}: {error}"))?;
    let mut found = rows::read_dir(Path::new(results))?;
    found.extend(rows::read_file(Path::new(papers))?);
    std::fs::create_dir_all(output).map_err(|error| format!("{output}: {error}"))?;
    let mut files = Vec::new();
    for chart in figures::all(&found) {
        for extension in ["svg", "png"] {
            let path = Path::new(output).join(&chart.file).with_extension(extension);
            chart.draw(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            files.push(path.display().to_string());
        }
    }
    if files.is_empty() { Err(format!("{results} has no rows of a figure")) } else { Ok(files) }
}
