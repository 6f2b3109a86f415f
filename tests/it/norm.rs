//! Normalisation and softmax as a program uses them: known values, forms that must agree, and edges.

use dittograd::device::Device;
use dittograd::device::cpu::simd::Simd;
use dittograd::numerics::{functions, sum};
use dittograd::session::{Session, Var};
use dittograd::tensor::Tensor;
use dittograd::torchlean::TorchLean;

fn session() -> Session {
    Session::eager(&Device::cpu_with(2, Simd::best()).unwrap())
}

fn tensor(dims: &[usize], data: &[f32]) -> Tensor<f32> {
    Tensor::new(dims, data.to_vec()).unwrap()
}

fn ramp(dims: &[usize]) -> Tensor<f32> {
    let n: usize = dims.iter().product();
    tensor(dims, &(0..n).map(|i| ((i * 37 % 23) as f32 - 11.0) * 0.25).collect::<Vec<_>>())
}

fn values(v: Var<'_>) -> Vec<f32> {
    v.value::<f32>().unwrap().data().to_vec()
}

#[track_caller]
fn near(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= tolerance, "{got:?} {want:?}");
    }
}

/// A channel's numbers are its own, whichever block of columns it is in.
#[test]
fn channels_of_a_wide_batch_are_those_of_a_narrow_one() {
    let session = session();
    let all = session.input(&ramp(&[3, 70])).unwrap();
    let some = all.narrow(1, 64, 6).unwrap();
    let want = values(some.batch_norm(None, None, 1e-5).unwrap());
    let got = all.batch_norm(None, None, 1e-5).unwrap().narrow(1, 64, 6).unwrap();
    assert_eq!(values(got), want);
}

#[test]
fn a_row_has_mean_zero_and_variance_one_and_a_constant_row_is_the_shift() {
    let s = session();
    let x = s.input(&tensor(&[2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0, 5.0])).unwrap();
    let (w, b) = (s.input(&tensor(&[4], &[1.0, 2.0, 1.0, 1.0])).unwrap(), s.input(&ramp(&[4])).unwrap());
    let plain = values(x.layer_norm(1, None, None, 0.0).unwrap());
    near(&plain[..4], &[-1.341_640_8, -0.447_213_6, 0.447_213_6, 1.341_640_8], 1e-6);
    let y = values(x.layer_norm(1, Some(w), Some(b), 1e-6).unwrap());
    assert_eq!(y[4..], values(b)[..]);
    near(&y[..1], &[-1.341_640_8 + values(b)[0]], 1e-5);
    let r = values(x.rms_norm(1, None, 0.0).unwrap());
    near(&r[4..], &[1.0; 4], 1e-6);
    near(&r[..2], &[0.365_148_37, 0.730_296_7], 1e-6);
}

#[test]
fn gradients_of_gain_and_shift_are_sums_over_rows() {
    let s = session();
    let x = s.variable(&ramp(&[70, 5])).unwrap();
    let (w, b) = (s.variable(&ramp(&[5])).unwrap(), s.variable(&ramp(&[5])).unwrap());
    let y = x.layer_norm(1, Some(w), Some(b), 1e-5).unwrap();
    let hat = values(x.layer_norm(1, None, None, 1e-5).unwrap());
    let grads = y.backward_from(&Tensor::full(y.shape().unwrap(), 1.0)).unwrap();
    let db = grads.var(b).unwrap().to_tensor::<f32>().unwrap();
    let dw = grads.var(w).unwrap().to_tensor::<f32>().unwrap();
    near(db.data(), &[70.0; 5], 0.0);
    let want: Vec<f32> = (0..5).map(|j| hat.iter().skip(j).step_by(5).sum()).collect();
    near(dw.data(), &want, 1e-4);
    let dx = grads.var(x).unwrap().to_tensor::<f32>().unwrap();
    // A shift of a whole row changes nothing.
    for row in dx.data().chunks(5) {
        near(&[row.iter().sum()], &[0.0], 1e-4);
    }
}

#[test]
fn channel_norms_agree_where_their_groups_do() {
    let s = session();
    let (w, b) = (s.input(&ramp(&[4])).unwrap(), s.input(&ramp(&[4])).unwrap());
    let x = s.input(&ramp(&[3, 4, 5, 7])).unwrap();
    let instance = values(x.instance_norm(Some(w), Some(b), 1e-6).unwrap());
    assert_eq!(instance, values(x.group_norm(4, Some(w), Some(b), 1e-6).unwrap()));
    // Image by image it is the norm of one image's channels.
    let image = s.input(&tensor(&[4, 5, 7], &values(x)[140..280])).unwrap();
    assert_eq!(instance[140..280], values(image.batchnorm_channel_first(w, b).unwrap())[..]);
    // One sample's batch is its instance.
    let one = image.reshape(&[1, 4, 5, 7]).unwrap();
    assert_eq!(
        values(one.batch_norm(Some(w), Some(b), 1e-6).unwrap()),
        values(one.instance_norm(Some(w), Some(b), 1e-6).unwrap())
    );
    assert!(image.batchnorm_channel_first(w, image).is_err());
}

#[test]
fn samples_without_elements_take_no_time_however_many_they_are() {
    let s = session();
    let many = 1 << 40;
    for dims in [[many, 2, 0], [many, 0, 3]] {
        let x = s.variable(&tensor(&dims, &[])).unwrap();
        let channels = [dims[1]];
        let (w, b) = (s.variable(&ramp(&channels)).unwrap(), s.variable(&ramp(&channels)).unwrap());
        let batch = x.batch_norm(Some(w), Some(b), 1e-5).unwrap();
        let group = x.group_norm(1, Some(w), Some(b), 1e-5).unwrap();
        for y in [batch, group] {
            let grads = y.backward_from(&tensor(&dims, &[])).unwrap();
            assert_eq!(grads.var(x).unwrap().shape().dims(), dims);
            let dw = grads.var(w).unwrap().to_tensor::<f32>().unwrap();
            assert_eq!(dw.data(), vec![0.0; dims[1]]);
        }
        let (mean, var) = x.moments().unwrap();
        assert_eq!([mean, var].map(|v| v.shape().unwrap().dims().to_vec()), [channels, channels]);
        assert_eq!(values(x.sum().unwrap()), [0.0]);
    }
}

#[test]
fn batch_norm_after_training_uses_the_statistics_given() {
    let s = session();
    let x = s.variable(&ramp(&[6, 3, 4])).unwrap();
    let (w, b) = (s.input(&ramp(&[3])).unwrap(), s.input(&ramp(&[3])).unwrap());
    let (mean, var) = x.moments().unwrap();
    assert_eq!(mean.shape().unwrap().dims(), [3]);
    let trained = x.batch_norm(Some(w), Some(b), 1e-5).unwrap();
    let eval = x.batch_norm_eval(mean, var, Some(w), Some(b), 1e-5).unwrap();
    assert_eq!(values(trained), values(eval));
    assert_eq!(
        values(x.batch_norm(None, None, 1e-5).unwrap()),
        values(x.batch_norm_eval(mean, var, None, None, 1e-5).unwrap())
    );
    // Statistics that are given are constants: the slope is weight / sqrt(var + eps).
    let want = values(w)[0] / (values(var)[0] + 1e-5).sqrt();
    let grads = eval.backward_from(&Tensor::full(eval.shape().unwrap(), 1.0)).unwrap();
    let dx = grads.var(x).unwrap().to_tensor::<f32>().unwrap();
    near(&dx.data()[..1], &[want], 1e-5);
}

#[test]
fn softmax_along_an_axis_is_that_of_the_turned_value() {
    let s = session();
    let x = s.input(&ramp(&[3, 6, 5])).unwrap();
    let turned = x.permute(&[0, 2, 1]).unwrap();
    for log in [false, true] {
        let pick = |v: Var<'_>, axis: usize| {
            let v = if log { v.log_softmax_axis(axis) } else { v.softmax_axis(axis) };
            v.unwrap().value::<f32>().unwrap()
        };
        let direct = pick(x, 1);
        let back = s.input(&pick(turned, 2)).unwrap().permute(&[0, 2, 1]).unwrap();
        near(direct.data(), &values(back), 1e-6);
    }
    assert!(x.softmax_axis(3).is_err());
}

#[test]
fn a_mask_leaves_out_what_it_forbids() {
    let s = session();
    let inf = f32::INFINITY;
    let x = tensor(&[4, 3], &[1.0, 2.0, 3.0, 1.0, inf, 2.0, -inf, 0.0, -inf, f32::NAN, 5.0, 6.0]);
    let x = s.variable(&x).unwrap();
    let mask = s
        .input(&tensor(&[4, 3], &[1.0, 0.0, f32::NAN, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, -0.0]))
        .unwrap();
    let y = x.masked_softmax(mask).unwrap();
    let got = values(y);
    let (e1, e2) = (1.0 / (1.0 + 1f32.exp()), 1.0 / (1.0 + (2f32).exp()));
    near(&got[..6], &[e2, 0.0, 1.0 - e2, e1, 0.0, 1.0 - e1], 1e-6);
    // Nothing but -inf allowed is NaN, as without a mask; nothing allowed is zero.
    assert!(got[6].is_nan() && got[8].is_nan() && got[7] == 0.0);
    assert_eq!(got[9..], [0.0; 3]);
    let grads = y.backward_from(&ramp(&[4, 3])).unwrap();
    let dx = grads.var(x).unwrap().to_tensor::<f32>().unwrap();
    assert_eq!(dx.data()[9..], [0.0; 3]);
    assert_eq!(dx.data()[1], 0.0);
    // u32 masks, masks that repeat over rows, and masks that broadcast.
    let x = s.input(&ramp(&[2, 4, 3])).unwrap();
    let bits = s.labels(&Tensor::new(&[4, 3], vec![1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0]).unwrap()).unwrap();
    let floats = s.input(&tensor(&[4, 3], &[1., 0., 1., 1., 1., 1., 0., 0., 0., 0., 1., 0.])).unwrap();
    let full = floats.broadcast_to(x.shape().unwrap()).unwrap();
    let want = values(x.masked_softmax(full).unwrap());
    assert_eq!(values(x.masked_softmax(bits).unwrap()), want);
    assert_eq!(values(x.masked_softmax(floats).unwrap()), want);
    let column = s.input(&tensor(&[4, 1], &[1.0, 0.0, 1.0, 1.0])).unwrap();
    assert_eq!(values(x.masked_softmax(column).unwrap())[3..6], [0.0; 3]);
}

/// Bits, all NaNs being one.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// A row's maximum without NaN and the sum of its terms by the row rule, word for word.
fn max_and_sum(x: &[f32], term: impl Fn(f32, f32) -> f32) -> (f32, f32) {
    let m = x.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m }) + 0.0;
    let t: Vec<f32> = x.iter().map(|&x| term(x, m)).collect();
    (m, sum::row(t.len(), |r| sum::chunk([&t[r]], |[t]| t)))
}

#[test]
fn rows_of_any_length_follow_the_definition_to_the_bit() {
    let exp = |x: f32, m: f32| functions::exp(x - m);
    for columns in [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 97, 1023, 1024, 1025, 1055, 2049] {
        let rows = 34;
        let mut x = ramp(&[rows, columns]).data().to_vec();
        for (i, x) in x.iter_mut().enumerate() {
            *x += (i % 101) as f32 * 0.01;
        }
        // Rows of nothing and of everything but numbers, at both ends of a piece of work and next to plain ones.
        for (row, at, value) in [
            (0, 0, f32::NAN),
            (3, columns - 1, f32::NAN),
            (5, columns / 2, f32::INFINITY),
            (8, 0, f32::NEG_INFINITY),
            (33, columns - 1, f32::INFINITY),
        ] {
            x[row * columns + at] = value;
        }
        for row in [6, 32] {
            x[row * columns..][..columns].fill(f32::NEG_INFINITY);
        }
        x[9 * columns..][..columns].fill(-0.0);
        let mask: Vec<f32> = (0..columns * 2).map(|i| (i % 3) as f32).collect();
        let dy = ramp(&[rows, columns]).data().to_vec();
        let labels: Vec<u32> = (0..rows).map(|r| (r * 7 % columns) as u32).collect();
        let mut want: [Vec<f32>; 6] = Default::default();
        let weight = (1.0 / rows as f64) as f32;
        for (row, (x, dy)) in x.chunks(columns).zip(dy.chunks(columns)).enumerate() {
            let (m, s) = max_and_sum(x, exp);
            let r = 1.0 / s;
            let y: Vec<f32> = x.iter().map(|&x| exp(x, m) * r).collect();
            let log: Vec<f32> = x.iter().map(|&x| (x - m) - functions::log(s)).collect();
            let products: Vec<f32> = y.iter().zip(dy).map(|(y, dy)| dy * y).collect();
            let by_softmax = max_and_sum(&products, |t, _| t).1;
            let by_log = max_and_sum(dy, |dy, _| dy).1;
            want[1].extend(y.iter().zip(dy).map(|(y, dy)| y * (dy - by_softmax)));
            want[3].extend(log.iter().zip(dy).map(|(&y, dy)| dy - functions::exp(y) * by_log));
            let hit = |i: usize| f32::from(u8::from(i == labels[row] as usize));
            want[5].extend(y.iter().enumerate().map(|(i, y)| (y - hit(i)) * weight));
            let mask = &mask[row % 2 * columns..][..columns];
            let left: Vec<f32> =
                x.iter().zip(mask).map(|(&x, &k)| if k == 0.0 { f32::NEG_INFINITY } else { x }).collect();
            let (m, _) = max_and_sum(&left, exp);
            let t: Vec<f32> =
                x.iter().zip(mask).map(|(&x, &k)| if k == 0.0 { 0.0 } else { exp(x, m) }).collect();
            let r = 1.0 / max_and_sum(&t, |t, _| t).1;
            want[4].extend(t.iter().map(|&t| if t > 0.0 { t * r } else { t }));
            want[0].extend(y);
            want[2].extend(log);
        }
        for simd in Simd::all_available() {
            for threads in [1, 3] {
                let s = Session::eager(&Device::cpu_with(threads, simd).unwrap());
                let dims = [rows, columns];
                let (xs, dy) = (tensor(&dims, &x), tensor(&dims, &dy));
                let shaped = s.input(&tensor(&[rows / 2, 2, columns], &x)).unwrap();
                let mask = s.input(&tensor(&[2, columns], &mask)).unwrap();
                let labels = s.labels(&Tensor::new(&[rows], labels.clone()).unwrap()).unwrap();
                let x = s.variable(&xs).unwrap();
                let slope = |y: Var<'_>, dy: &Tensor<f32>| {
                    let grads = y.backward_from(dy).unwrap();
                    grads.var(x).unwrap().to_tensor::<f32>().unwrap().data().to_vec()
                };
                let (soft, log) = (x.softmax().unwrap(), x.log_softmax().unwrap());
                let masked = values(shaped.masked_softmax(mask).unwrap());
                let (y, log_y) = (values(soft), values(log));
                let loss = x.cross_entropy(labels).unwrap();
                let one = Tensor::full(loss.shape().unwrap(), 1.0);
                let got = [y, slope(soft, &dy), log_y, slope(log, &dy), masked, slope(loss, &one)];
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert_eq!(bits(got), bits(want), "{columns} columns, result {i}, {simd} x{threads}");
                }
            }
        }
    }
}

#[test]
fn a_shift_alone_has_a_gain_of_ones() {
    let s = session();
    let x = s.input(&ramp(&[2, 4, 3])).unwrap();
    let (shift, ones) = (s.input(&ramp(&[4])).unwrap(), s.ones(&[4]).unwrap());
    let last = s.input(&ramp(&[3])).unwrap();
    let (mean, var) = x.moments().unwrap();
    for (alone, both) in [
        (x.batch_norm(None, Some(shift), 1e-5), x.batch_norm(Some(ones), Some(shift), 1e-5)),
        (
            x.batch_norm_eval(mean, var, None, Some(shift), 1e-5),
            x.batch_norm_eval(mean, var, Some(ones), Some(shift), 1e-5),
        ),
        (x.group_norm(2, None, Some(shift), 1e-5), x.group_norm(2, Some(ones), Some(shift), 1e-5)),
        (
            x.layer_norm(1, None, Some(last), 1e-5),
            x.layer_norm(1, Some(s.ones(&[3]).unwrap()), Some(last), 1e-5),
        ),
    ] {
        assert_eq!(values(alone.unwrap()), values(both.unwrap()));
    }
    assert!(x.layer_norm(1, None, Some(shift), 1e-5).is_err());
}

#[test]
fn a_safe_softmax_of_nothing_is_zero() {
    let s = session();
    let inf = f32::NEG_INFINITY;
    let x = s.variable(&tensor(&[2, 3], &[inf, 1.0, inf, inf, 1.0, 2.0])).unwrap();
    assert_eq!(values(x.safe_softmax(0).unwrap()), [0.0, 0.5, 0.0, 0.0, 0.5, 1.0]);
    let rows = x.narrow(0, 1, 1).unwrap();
    near(&values(rows.safe_softmax(-1).unwrap()), &values(rows.softmax().unwrap()), 1e-7);
    let grads = x.safe_softmax(0).unwrap().square().unwrap().sum().unwrap().backward_retain().unwrap();
    assert!(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data().iter().all(|g| *g == 0.0));
    assert!(x.safe_softmax(2).unwrap_err().to_string().contains("axis 2"));
}
