//! GPT-2's weights as published.

use super::GptConfig;
use crate::error::{Error, Result};
use crate::io::StateDict;

/// Parts of names in Hugging Face's files, and ours.
const NAMES: [(&str, &str); 9] = [
    ("wte.", "tok."),
    ("wpe.", "pos."),
    ("ln_f.", "ln."),
    ("ln_1.", "ln1."),
    ("ln_2.", "ln2."),
    ("attn.c_attn.", "qkv."),
    ("attn.c_proj.", "o."),
    ("mlp.c_fc.", "up."),
    ("mlp.c_proj.", "down."),
];

/// Our name of a tensor in Hugging Face's files; `None` for masks and for the head, which is the embedding table.
fn name(theirs: &str) -> Option<String> {
    let short = theirs.strip_prefix("transformer.").unwrap_or(theirs);
    if short == "lm_head.weight" || short.ends_with(".attn.bias") || short.ends_with(".attn.masked_bias") {
        return None;
    }
    let (block, part) = match short.strip_prefix("h.").and_then(|rest| rest.split_once('.')) {
        Some((i, part)) => (format!("blocks.{i}."), part),
        None => (String::new(), short),
    };
    let known = NAMES.iter().find_map(|(from, to)| Some((to, part.strip_prefix(from)?)));
    Some(known.map_or(short.to_string(), |(to, rest)| format!("{block}{to}{rest}")))
}

/// Converts the weights of a GPT-2 file of Hugging Face, or of programs that use its names, to our names and layout, to
/// be [loaded](crate::io::SaveLoad::load_state_dict) by a [`Gpt`](super::Gpt). The prefix `transformer.` is optional.
/// Weights of layers may be (in, out), as published, or (out, in).
#[track_caller]
pub fn from_gpt2(state: StateDict) -> Result<StateDict> {
    if let (Some(head), Some((_, table))) =
        (state.get("lm_head.weight"), state.iter().find(|(n, _)| n.ends_with("wte.weight")))
        && head != table
    {
        let why = "lm_head.weight is another matrix than wte.weight; the head of this model is the embedding's table";
        return Err(Error::argument("gpt2", "state", why));
    }
    let state = state.rename(name)?;
    let is_turned = |weight: &str| {
        state.get(weight).is_some_and(|t| matches!(t.shape().dims(), &[rows, columns] if rows < columns))
    };
    if !is_turned("blocks.0.qkv.weight") {
        return Ok(state);
    }
    let layers = ["qkv", "o", "up", "down"].map(|layer| format!(".{layer}.weight"));
    state.transpose(|name| name.starts_with("blocks.") && layers.iter().any(|l| name.ends_with(l)))
}

impl GptConfig {
    /// The sizes of the model whose weights are in `state`, under our names. The number of heads cannot be derived;
    /// GPT-2's have 64 channels each. Dropout is 0.
    #[track_caller]
    pub fn of_state(state: &StateDict, heads: usize) -> Result<GptConfig> {
        let matrix = |name: &str| match state.get(name).map(|t| t.shape()) {
            Some(shape) if shape.rank() == 2 => Ok((shape.dims()[0], shape.dims()[1])),
            _ => Err(Error::argument(
                "gpt",
                "state",
                format!("there is no matrix `{name}`; see nn::from_gpt2"),
            )),
        };
        let ((vocab, width), (context, _)) = (matrix("tok.weight")?, matrix("pos.weight")?);
        let layers = (0..).take_while(|i| state.get(&format!("blocks.{i}.ln1.weight")).is_some()).count();
        Ok(GptConfig { vocab, context, width, heads, layers, dropout: 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::safetensors::SafeTensors;
    use crate::prelude::*;

    /// `tests/golden/safetensors_files.py` makes the file.
    #[test]
    fn a_published_file_gives_pytorchs_outputs() {
        let bytes = include_bytes!("../../tests/golden/gpt2.safetensors").to_vec();
        let mut file = StateDict::from_file(&SafeTensors::parse("gpt2", bytes).unwrap()).unwrap();
        let (Some(AnyTensor::Idx(tokens)), Some(AnyTensor::Num(want))) =
            (file.get("tokens").cloned(), file.get("logits").cloned())
        else {
            panic!("tokens and logits")
        };
        file = file.rename(|n| Some(n.to_string()).filter(|n| n != "tokens" && n != "logits")).unwrap();
        let device = Device::cpu().unwrap();
        let linear = file.clone().transpose(|n| n.contains("c_") && n.ends_with("weight")).unwrap();
        let short = file.clone().without_prefix("transformer.").unwrap();
        for state in [file.clone(), linear, short] {
            let state = from_gpt2(state).unwrap();
            let config = GptConfig::of_state(&state, 2).unwrap();
            assert_eq!(
                config,
                GptConfig { vocab: 7, context: 5, width: 4, heads: 2, layers: 2, dropout: 0.0 }
            );
            let mut params = Params::new(&device, 0);
            let net = Gpt::new(&mut params, config).unwrap();
            params.load_state_dict(&state, true).unwrap();
            let s = Session::inference(&device);
            let got = net.forward(s.labels(&tokens).unwrap()).unwrap().value::<f32>().unwrap();
            assert_eq!(got.shape(), want.shape());
            let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5 * b.abs().max(1.0);
            assert_eq!(got.data().iter().zip(want.data()).position(far), None);
        }
        let mut odd = file.clone();
        odd.insert("lm_head.weight", Tensor::scalar(1.0f32));
        assert!(from_gpt2(odd).unwrap_err().to_string().contains("lm_head.weight"));
        assert!(GptConfig::of_state(&file, 2).unwrap_err().to_string().contains("no matrix `tok.weight`"));
    }
}
