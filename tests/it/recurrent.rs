//! Recurrent layers: a layer is its cells step by step, and a sequence in a batch is that sequence alone, bit for bit.

use crate::support::{data, device as cpu, fractions};
use dittograd::nn::{Gru, GruCell, Lstm, LstmCell, RecurrentConfig, Rnn, RnnCell};
use dittograd::prelude::*;

const BATCH: usize = 19;
const TIMES: usize = 7;
const WIDTH: usize = 12;

fn config() -> RecurrentConfig {
    RecurrentConfig { inputs: WIDTH, hidden: WIDTH, ..RecurrentConfig::default() }
}

/// The layer and the cell begin with the same parameters: draws are by number.
macro_rules! a_layer_is_its_cells {
    ($name:ident, $layer:ident, $cell:ident, |$out:ident| $first:expr) => {
        #[test]
        fn $name() {
            for threads in [1, 2, 3] {
                let device = Device::cpu_with(threads, dittograd::device::cpu::simd::Simd::best()).unwrap();
                let (mut of_layer, mut of_cell) = (Params::new(&device, 3), Params::new(&device, 3));
                let layer = $layer::new(&mut of_layer, "layer", config()).unwrap();
                let cell = $cell::new(&mut of_cell, "cell", WIDTH, WIDTH).unwrap();
                let session = Session::eager(&device);
                let x = session.input(&fractions(&[BATCH, TIMES, WIDTH], 37)).unwrap();
                let $out = layer.forward(x, None).unwrap();
                let (all, last) = $first;
                let mut states = None;
                for t in 0..TIMES {
                    states = Some(cell.forward(x.select(1, t).unwrap(), states).unwrap());
                    assert_eq!(data(all.select(1, t).unwrap()), data(states.unwrap()[0]), "step {t}");
                }
                for (i, last) in last.into_iter().enumerate() {
                    assert_eq!(data(last), data(states.unwrap()[i]), "state {i}");
                }
            }
        }
    };
}

a_layer_is_its_cells!(lstm_is_its_cells, Lstm, LstmCell, |out| (out.0, out.1.to_vec()));
a_layer_is_its_cells!(gru_is_its_cells, Gru, GruCell, |out| (out.0, vec![out.1]));
a_layer_is_its_cells!(rnn_is_its_cells, Rnn, RnnCell, |out| (out.0, vec![out.1]));

#[test]
fn sequences_of_different_lengths_are_these_alone() {
    let device = cpu();
    let mut params = Params::new(&device, 3);
    let both = RecurrentConfig { layers: 2, bidirectional: true, ..config() };
    let layer = Lstm::new(&mut params, "layer", both).unwrap();
    let session = Session::eager(&device);
    let x = session.variable(&fractions(&[BATCH, TIMES, WIDTH], 37)).unwrap();
    let lengths: Vec<u32> = (0..BATCH).map(|n| (n * 5 % (TIMES + 1)) as u32).collect();
    let given = session.indices(&Tensor::new(&[BATCH], lengths.clone()).unwrap()).unwrap();
    let (out, [h, c]) = layer.forward_lengths(x, given, None).unwrap();
    let loss = out.square().unwrap().sum().unwrap();
    let grads = loss.backward_retain().unwrap();
    let grad = grads.var(x).unwrap().to_tensor::<f32>().unwrap().into_data();
    for (n, &len) in lengths.iter().enumerate() {
        let len = len as usize;
        let row = data(out.select(0, n).unwrap());
        assert!(row[len * 2 * WIDTH..].iter().all(|y| y.to_bits() == 0), "after the end of sequence {n}");
        let own = &grad[n * TIMES * WIDTH..][..TIMES * WIDTH];
        assert!(own[len * WIDTH..].iter().all(|g| *g == 0.0), "gradients after the end of sequence {n}");
        if len == 0 {
            assert!(data(h.select(1, n).unwrap()).iter().all(|y| *y == 0.0));
            continue;
        }
        let alone = Session::eager(&device);
        let whole = fractions(&[BATCH, TIMES, WIDTH], 37).into_data();
        let part = Tensor::new(&[1, len, WIDTH], whole[n * TIMES * WIDTH..][..len * WIDTH].to_vec()).unwrap();
        let part = alone.variable(&part).unwrap();
        let (want, [h_want, c_want]) = layer.forward(part, None).unwrap();
        assert_eq!(row[..len * 2 * WIDTH], data(want), "outputs of sequence {n}");
        assert_eq!(data(h.select(1, n).unwrap()), data(h_want), "last h of sequence {n}");
        assert_eq!(data(c.select(1, n).unwrap()), data(c_want), "last c of sequence {n}");
        let grads = want.square().unwrap().sum().unwrap().backward_retain().unwrap();
        let want = grads.var(part).unwrap().to_tensor::<f32>().unwrap().into_data();
        assert_eq!(own[..len * WIDTH], want, "gradients of sequence {n}");
    }
}
