//! `graph`: a program in a text file or of a trained model, checked, and printed as its text, hash or drawing.

use crate::export::Traced;
use crate::out::Out;
use crate::train::positive;
use crate::{Answer, Global, fail};
use clap::Args;
use dittograd::graph::{Graph as Program, Passes, What};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Check and show a program: of a trained model, or from a text file.
#[derive(Args)]
#[command(group(clap::ArgGroup::new("form").args(["dot", "svg", "hash"])))]
pub(crate) struct Graph {
    /// A checkpoint or the folder of a run, or a file with the text of a program, as this command prints it
    #[arg(value_name = "MODEL|FILE")]
    file: PathBuf,
    /// Rows of a model's inputs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    batch: usize,
    /// As it runs: after all passes
    #[arg(long)]
    compiled: bool,
    /// Print it for Graphviz
    #[arg(long)]
    dot: bool,
    /// Print it as an SVG image
    #[arg(long)]
    svg: bool,
    /// Print its hash only
    #[arg(long)]
    hash: bool,
}

impl Graph {
    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        let is_model = self.file.is_dir() || self.file.extension().is_some_and(|e| e == "safetensors");
        let mut graph = match is_model {
            true => Traced::load(global, &self.file, self.batch, None)?.graph,
            false => program_of(&self.file)?,
        };
        if self.compiled {
            graph = graph.after(Passes::all())?;
        }
        if out.json() {
            let ops = graph.nodes().iter().filter(|n| matches!(n.what, What::Op(..))).count();
            let params: Vec<String> = graph.params().into_iter().map(|p| p.0).collect();
            let (values, inputs, outputs) = (graph.size(), graph.inputs().len(), graph.outputs().len());
            let hash = graph.hash()?;
            let all = json!({"hash": hash, "values": values, "ops": ops, "inputs": inputs, "outputs": outputs, "params": params});
            out.line(&all.to_string())?;
            return Ok(true);
        }
        let shown = match (self.dot, self.svg, self.hash) {
            (true, ..) => graph.to_dot(),
            (_, true, _) => graph.to_svg(),
            (_, _, true) => graph.hash()?,
            _ => graph.text()?,
        };
        out.line(shown.trim_end())?;
        Ok(true)
    }
}

/// The program in a text file.
pub(crate) fn program_of(path: &Path) -> Answer<Program> {
    let file = path.display();
    let Ok(text) = String::from_utf8(dittograd::io::read(path)?) else {
        return fail(format!("{file}: is not text"));
    };
    Program::parse(&text).or_else(|e| fail(format!("{file}: {e}")))
}
