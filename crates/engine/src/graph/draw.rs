//! Drawings of a program: DOT for other tools, and a simple SVG of our own.

use super::text::Kind;
use super::{Graph, Node, Source, What};
use std::fmt::Write;

/// What a value is, in a few words, and whether it comes from outside.
fn label(node: &Node, name: Option<&str>) -> (String, bool) {
    match &node.what {
        What::Leaf(Source::Input(_)) => (name.unwrap_or("input").to_string(), true),
        What::Leaf(Source::Param(p)) => (p.name().to_string(), true),
        What::Leaf(Source::Named(name, _)) => (name.clone(), true),
        What::Leaf(Source::Constant(_)) => ("constant".to_string(), true),
        What::Leaf(Source::State(_)) => ("state".to_string(), true),
        What::Leaf(Source::Nats(_)) => ("nats".to_string(), true),
        What::Leaf(Source::RandomBase) => ("random base".to_string(), true),
        What::Op(op, _) => (op.name().to_string(), false),
    }
}

/// At most `most` characters.
fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_string(),
    }
}

/// Size of a box, and what is free around it.
const BOX: (usize, usize) = (150, 38);
const GAP: (usize, usize) = (18, 34);

impl Graph {
    fn ins(&self, i: usize) -> &[dittograd_ops::Val] {
        match &self.nodes[i].what {
            What::Op(_, ins) => ins,
            What::Leaf(_) => &[],
        }
    }

    /// The program in the DOT language, which Graphviz draws. Values that gradients flow through have thick borders,
    /// those that are returned two.
    pub fn to_dot(&self) -> String {
        let mut dot = "digraph program {\nnode [shape=box, fontname=monospace]\n".to_string();
        let names = self.value_names();
        for (i, node) in self.nodes.iter().enumerate() {
            let (name, leaf) = label(node, names[i]);
            let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace(char::is_control, " ");
            let fill = if leaf { ", style=filled, fillcolor=\"#eef2f7\"" } else { "" };
            let width = if node.requires_grad { ", penwidth=2" } else { "" };
            let twice = if self.is_output(i) { ", peripheries=2" } else { "" };
            let _ = writeln!(dot, "v{i} [label=\"{name}\\n{}\"{fill}{width}{twice}]", Kind(node.meta));
            self.ins(i).iter().for_each(|v| dot.push_str(&format!("v{} -> v{i}\n", v.0)));
        }
        dot.push_str("}\n");
        dot
    }

    fn is_output(&self, i: usize) -> bool {
        self.outputs.iter().any(|v| v.0 as usize == i)
    }

    /// The layer each value is drawn in: one below the lowest it is computed from, and leaves just above their first use.
    fn layers(&self) -> Vec<usize> {
        let mut layer = vec![0; self.size()];
        for i in 0..self.size() {
            layer[i] = self.ins(i).iter().map(|v| layer[v.0 as usize] + 1).max().unwrap_or(0);
        }
        let mut first_use = vec![usize::MAX; self.size()];
        for (i, &user) in layer.iter().enumerate() {
            self.ins(i).iter().for_each(|v| {
                let first = &mut first_use[v.0 as usize];
                *first = user.min(*first);
            });
        }
        for i in (0..self.size()).filter(|&i| self.ins(i).is_empty() && first_use[i] != usize::MAX) {
            layer[i] = first_use[i] - 1;
        }
        layer
    }

    /// Where each value is in its layer: three sweeps that sort layers by the mean place of what values are computed
    /// from and used by, which keeps most lines short.
    fn places(&self, layer: &[usize]) -> Vec<usize> {
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); layer.iter().max().map_or(0, |m| m + 1)];
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); self.size()];
        for (i, &l) in layer.iter().enumerate() {
            rows[l].push(i);
            self.ins(i).iter().for_each(|v| users[v.0 as usize].push(i));
        }
        let mut place = vec![0; self.size()];
        let mut settle = |row: &mut Vec<usize>, near: &dyn Fn(usize) -> Vec<usize>| {
            let mean = |&i: &usize| {
                let near = near(i);
                let sum: usize = near.iter().map(|&j| place[j]).sum();
                // In thirds of a place; without neighbours it stays.
                if near.is_empty() { 3 * place[i] } else { 3 * sum / near.len() }
            };
            row.sort_by_cached_key(mean);
            row.iter().enumerate().for_each(|(at, &i)| place[i] = at);
        };
        rows.iter_mut().for_each(|row| settle(row, &|_| Vec::new()));
        let above = |i: usize| self.ins(i).iter().map(|v| v.0 as usize).collect();
        for _ in 0..3 {
            rows.iter_mut().for_each(|row| settle(row, &above));
            rows.iter_mut().rev().for_each(|row| settle(row, &|i| users[i].clone()));
        }
        place
    }

    /// The program as an SVG image: a box for each value with its name and shape, in layers from what comes from
    /// outside (grey) down to what is returned (dark). Values that gradients flow through have thick borders.
    pub fn to_svg(&self) -> String {
        let layer = self.layers();
        let place = self.places(&layer);
        let wide = place.iter().max().map_or(1, |m| m + 1);
        let high = layer.iter().max().map_or(1, |m| m + 1);
        let (step_x, step_y) = (BOX.0 + GAP.0, BOX.1 + GAP.1);
        let mut widths = vec![0; high];
        layer.iter().for_each(|&l| widths[l] += 1);
        // Layers are centred.
        let at = |i: usize| {
            let left = (wide - widths[layer[i]]) * step_x / 2;
            (GAP.0 + left + place[i] * step_x, GAP.1 / 2 + layer[i] * step_y)
        };
        let (width, height) = (wide * step_x + GAP.0, high * step_y);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"monospace\" font-size=\"12\" text-anchor=\"middle\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for i in 0..self.size() {
            let (x, y) = at(i);
            for v in self.ins(i) {
                let from = at(v.0 as usize);
                let (x0, y0, x1) = (from.0 + BOX.0 / 2, from.1 + BOX.1, x + BOX.0 / 2);
                let middle = (y0 + y) / 2;
                let _ = writeln!(
                    svg,
                    "<path d=\"M{x0} {y0}C{x0} {middle} {x1} {middle} {x1} {y}\" fill=\"none\" stroke=\"#8a94a6\"/>"
                );
            }
        }
        let names = self.value_names();
        for (i, node) in self.nodes.iter().enumerate() {
            let ((x, y), (whole, leaf)) = (at(i), label(node, names[i]));
            let fill = match (self.is_output(i), leaf) {
                (true, _) => "#cfe3d4",
                (_, true) => "#eef2f7",
                _ => "#ffffff",
            };
            let line = if node.requires_grad { 2 } else { 1 };
            let (middle, name) = (x + BOX.0 / 2, escaped(&short(&whole, 18)));
            let (shape, whole) = (Kind(node.meta).to_string(), escaped(&whole));
            let _ = writeln!(
                svg,
                "<g><title>%{i} {whole} {shape}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"5\" \
                 fill=\"{fill}\" stroke=\"#33415c\" stroke-width=\"{line}\"/>\
                 <text x=\"{middle}\" y=\"{}\" font-weight=\"bold\">{name}</text><text x=\"{middle}\" y=\"{}\" \
                 fill=\"#5b6780\">{}</text></g>",
                BOX.0,
                BOX.1,
                y + 16,
                y + 31,
                short(&shape, 20)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    let one = |c: char| match c {
        '<' => "&lt;".to_string(),
        '>' => "&gt;".to_string(),
        '&' => "&amp;".to_string(),
        '"' => "&quot;".to_string(),
        c if c.is_control() => " ".to_string(),
        c => c.to_string(),
    };
    text.chars().map(one).collect()
}
