//! Linear algebra and Fourier transforms against PyTorch in float64 (`tests/golden/linalg.py`), and what they refuse.

use crate::support::{data, device, t};
use dittograd::prelude::*;
use dittograd::session::{FftNorm, MatrixNorm, PadMode, QrMode, Stft};
use serde_json::Value;

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn sizes(v: &Value) -> Vec<usize> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

fn cases() -> Vec<Value> {
    include_str!("../golden/linalg.jsonl").lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// What the case of that name computes.
fn compute<'s>(name: &str, x: &[Var<'s>]) -> Result<Var<'s>> {
    use FftNorm::{Backward, Forward, Ortho};
    let plain = Stft { hop: 4, center: false, normalized: true, ..Stft::new(6) };
    let padded = |pad_mode| x[0].stft(Stft { win_length: Some(6), pad_mode, ..Stft::new(8) }, None);
    match name {
        "cholesky" => x[0].cholesky(false),
        "cholesky_upper" => x[0].cholesky(true),
        "solve_triangular" => x[0].solve_triangular(x[1], false, true, false),
        "solve_triangular_right" => x[0].solve_triangular(x[1], true, false, false),
        "solve_triangular_unit" => x[0].solve_triangular(x[1], true, true, true),
        "cholesky_solve" => x[0].cholesky_solve(x[1], false),
        "cholesky_inverse" => x[0].cholesky_inverse(false),
        "solve" | "solve_broadcast" | "solve_vector" | "solve_vectors" => x[0].solve(x[1]),
        "inverse" => x[0].inverse(),
        "det" | "det_one" => x[0].det(),
        "slogdet" => Ok(x[0].slogdet()?.1),
        "logdet" => x[0].logdet(),
        "lu" => {
            let [_, l, u] = x[0].lu()?;
            l.concat(u, 2)
        }
        "lu_wide" | "lu_tall" => {
            let [_, l, u] = x[0].lu()?;
            l.flatten()?.concat(u.flatten()?, 0)
        }
        "lu_factor" => Ok(x[0].lu_factor()?.0),
        "lu_unpack" => {
            let order = x[0].session().indices(&Tensor::new(&[2, 3], vec![1, 2, 0, 1, 2, 0])?)?;
            let [p, l, u] = x[0].lu_unpack(order)?;
            x[0].session().concat(&[p.flatten()?, l.flatten()?, u.flatten()?], 0)
        }
        "lu_solve" | "lu_solve_adjoint" | "lu_solve_right" | "lu_solve_right_adjoint" => {
            let order = x[0].session().indices(&Tensor::new(&[4], vec![2, 0, 3, 1])?)?;
            x[1].lu_solve(x[0], order, !name.contains("right"), name.ends_with("adjoint"))
        }
        "householder_product" | "householder_product_square" => x[0].householder_product(x[1]),
        "ormqr" | "ormqr_transpose" | "ormqr_right" | "ormqr_right_transpose" => {
            x[0].ormqr(x[1], x[2], !name.contains("right"), name.ends_with("transpose"))
        }
        "qr" | "qr_square" | "qr_wide" => {
            let (q, r) = x[0].qr(if name == "qr_square" { QrMode::Complete } else { QrMode::Reduced })?;
            q.flatten()?.concat(r.flatten()?, 0)
        }
        "qr_complete" => {
            let (q, r) = x[0].detach()?.qr(QrMode::Complete)?;
            q.flatten()?.concat(r.flatten()?, 0)?.add(x[0].sum()?.scale(0.0)?)
        }
        "geqrf" | "geqrf_wide" => {
            let (packed, tau) = x[0].geqrf()?;
            packed.flatten()?.concat(tau.flatten()?, 0)?.add(x[0].sum()?.scale(0.0)?)
        }
        "lstsq" | "lstsq_wide" => x[0].lstsq(x[1]),
        "matrix_exp" | "matrix_exp_one" => x[0].matrix_exp(),
        "cond_1" => x[0].cond(MatrixNorm::Columns { smallest: false }),
        "cond_fro" => x[0].cond(MatrixNorm::Frobenius),
        "cond_minus_inf" => x[0].cond(MatrixNorm::Rows { smallest: true }),
        "tensorinv" => x[0].tensorinv(1),
        "tensorsolve" => x[0].tensorsolve(x[1], &[0; 0]),
        "tensorsolve_moved" => x[0].tensorsolve(x[1], &[0]),
        "matrix_power_5" => x[0].matrix_power(5),
        "matrix_power_minus_2" => x[0].matrix_power(-2),
        "cross" => x[0].cross(x[1], 1),
        "vecdot" => x[0].vecdot(x[1], 1),
        "fft" | "fft_one" | "fft_two" => x[0].fft(None, 1, Backward),
        "fft_odd" => x[0].fft(None, 1, Ortho),
        "fft_axis" => x[0].fft(Some(5), 0, Forward),
        "ifft" => x[0].ifft(Some(6), 1, Backward),
        "ifft_ortho" => x[0].ifft(None, 1, Ortho),
        "rfft" => x[0].rfft_with(Some(7), 1, Ortho),
        "irfft" => x[0].irfft_with(None, 0, Backward),
        "irfft_odd" => x[0].irfft_with(Some(9), 1, Forward),
        "fft2" => x[0].fft2(None, [-2, -1], Backward),
        "ifft2" => x[0].ifft2(None, [-2, -1], Ortho),
        "rfft2" => x[0].rfft2(None, [-2, -1], Backward),
        "irfft2" => x[0].irfft2(Some([3, 5]), [1, 2], Backward),
        "fftn" => x[0].fftn(Some(&[4, 2]), &[0, 2], Backward),
        "ifftn" => x[0].ifftn(None, &[0, 1], Forward),
        "rfftn" => x[0].rfftn(None, &[-1, 0], Ortho),
        "irfftn" => x[0].irfftn(Some(&[4, 5]), &[1, 0], Backward),
        "hfft" => x[0].hfft(Some(7), -1, Backward),
        "ihfft" => x[0].ihfft(None, 1, Ortho),
        "hfftn" => x[0].hfftn(None, &[0, 1], Backward),
        "ihfftn" => x[0].ihfftn(None, &[0, 1], Backward),
        "conj" => x[0].conj(),
        "fftshift" => x[0].fftshift(&[0, 2]),
        "ifftshift" => x[0].ifftshift(&[0, -1]),
        "stft_two_sided" => {
            x[0].stft(Stft { hop: 3, win_length: Some(5), onesided: false, ..Stft::new(8) }, Some(x[1]))
        }
        "stft_constant" => padded(PadMode::Constant(0.0)),
        "stft_replicate" => padded(PadMode::Replicate),
        "stft_circular" => padded(PadMode::Circular),
        "istft_two_sided" => x[0].istft(
            Stft { hop: 2, win_length: Some(6), onesided: false, ..Stft::new(7) },
            Some(x[1]),
            None,
        ),
        "stft" => x[0].stft(Stft::new(8), Some(x[1])),
        "stft_plain" => x[0].stft(plain, None),
        "istft" => x[0].istft(Stft::new(8), Some(x[1]), None),
        "istft_len" => x[0].istft(Stft::new(8), Some(x[1]), Some(17)),
        _ => panic!("no such case: {name}"),
    }
}

fn agree(name: &str, what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}: {what}");
    let size = want.iter().fold(1e-3, |m: f64, w| m.max(w.abs()));
    for (at, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * size, "{name}: {what} at {at} is {g}, PyTorch has {w}");
    }
}

/// Values and gradients of all cases on a device.
fn compare(device: &Device, tolerance: f64) {
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let s = Session::eager(device);
        let input = |i: &Value| {
            s.variable(&Tensor::<f64>::new(&sizes(&i["shape"]), numbers(&i["data"])).unwrap()).unwrap()
        };
        let x: Vec<Var<'_>> = case["ins"].as_array().unwrap().iter().map(input).collect();
        let y = compute(name, &x).unwrap_or_else(|e| panic!("{name}: {e}"));
        let dims = sizes(&case["y"]["shape"]);
        assert_eq!(y.shape().unwrap().dims(), dims, "{name}");
        agree(name, "value", y.value::<f64>().unwrap().data(), &numbers(&case["y"]["data"]), tolerance);
        let dy = Tensor::<f64>::new(&dims, numbers(&case["dy"])).unwrap();
        let loss = y.mul(s.constant(&dy).unwrap()).unwrap().sum().unwrap();
        let grads = loss.backward().unwrap();
        for (i, (x, want)) in x.iter().zip(case["dx"].as_array().unwrap()).enumerate() {
            let got = grads.var(*x).unwrap().to_tensor::<f64>().unwrap();
            agree(name, &format!("gradient {i}"), got.data(), &numbers(want), tolerance);
        }
    }
}

#[test]
fn values_and_gradients_are_those_of_pytorch() {
    compare(&Device::host::<f64>(), 2e-7);
    compare(&device(), 2e-5);
}

#[test]
fn cuda_values_and_gradients_are_those_of_pytorch() {
    if let Some((_turn, gpu)) = dittograd_check::gpu() {
        compare(&gpu, 2e-5);
    }
}

#[test]
fn matrices_that_cannot_be_solved_with_give_no_numbers() {
    let device = device();
    let s = Session::eager(&device);
    let indefinite = s.constant(&t(&[2, 2], &[1.0, 2.0, 2.0, 1.0])).unwrap();
    let l = data(indefinite.cholesky(false).unwrap());
    assert_eq!((&l[..3], l[3].is_nan()), (&[1.0, 0.0, 2.0][..], true));
    let singular = s.constant(&t(&[2, 2], &[1.0, 2.0, 2.0, 4.0])).unwrap();
    assert_eq!(data(singular.det().unwrap()), [0.0]);
    let (sign, log) = singular.slogdet().unwrap();
    assert_eq!((data(sign), data(log)), (vec![0.0], vec![f32::NEG_INFINITY]));
    assert!(data(singular.inverse().unwrap()).iter().all(|x| !x.is_finite()));
    assert!(data(singular.neg().unwrap().matrix_power(-1).unwrap()).iter().all(|x| !x.is_finite()));
    let negative = s.constant(&t(&[1, 1], &[-2.0])).unwrap();
    assert!(data(negative.logdet().unwrap())[0].is_nan());
    let (nan, info) = indefinite.cholesky_ex(true).unwrap();
    assert_eq!((data(nan)[3].is_nan(), numbered(info)), (true, vec![2]));
    let three =
        s.constant(&t(&[3, 2, 2], &[1.0, 2.0, 2.0, 4.0, 0.0, 0.0, 0.0, 5.0, 1.0, 0.0, 0.0, 1.0])).unwrap();
    assert_eq!(numbered(three.inverse_ex().unwrap().1), [2, 1, 0]);
    assert_eq!(numbered(three.solve_ex(s.ones(&[2]).unwrap()).unwrap().1), [2, 1, 0]);
    assert_eq!(numbered(singular.solve_ex(s.ones(&[3, 2, 1]).unwrap()).unwrap().1), [2]);
    let (_, rows, info) = three.lu_factor_ex().unwrap();
    assert_eq!((numbered(rows), numbered(info)), (vec![1, 0, 0, 1, 0, 1], vec![2, 1, 0]));
    let none = s.zeros(&[3, 0, 0]).unwrap();
    assert_eq!(numbered(none.lu_factor_ex().unwrap().2), [0; 3]);
    assert_eq!(data(none.det().unwrap()), [1.0; 3]);
}

#[test]
fn factors_make_the_matrix_again() {
    let device = device();
    let s = Session::eager(&device);
    let a = s.constant(&t(&[3, 3], &[0.0, 2.0, 1.0, 1.0, 0.5, 0.0, 4.0, 1.0, 1.0])).unwrap();
    let [p, l, u] = a.lu().unwrap();
    assert_eq!(data(p.matmul(l).unwrap().matmul(u).unwrap()), data(a));
    assert_eq!(data(a.matrix_power(0).unwrap()), data(s.eye(3).unwrap()));
    assert_eq!(data(a.matrix_power(1).unwrap()), data(a));
}

#[test]
fn orthogonal_factors_are_orthogonal_and_make_the_matrix_again() {
    let device = device();
    let s = Session::eager(&device);
    for dims in [[2, 5, 3], [1, 1100, 40], [1, 70, 70], [2, 3, 5], [1, 4, 0], [1, 0, 4], [1, 1, 1]] {
        let a = s.uniform_range(&dims, -4.0, 4.0).unwrap();
        for mode in [QrMode::Reduced, QrMode::Complete] {
            let (q, r) = a.qr(mode).unwrap();
            let again = q.matmul(r).unwrap();
            assert!(again.allclose(a, 1e-5, 1e-4, false).unwrap(), "{dims:?}");
            let columns = q.shape().unwrap().last();
            let eye = s.eye(columns).unwrap();
            let ones = q.matmul_with(q, true, false).unwrap();
            assert!(ones.allclose(eye, 0.0, 1e-4, false).unwrap(), "{dims:?}");
        }
    }
    // A column of zeros below the diagonal is not reflected, also if its own element is negative.
    let (q, r) = s.eye(3).unwrap().neg().unwrap().qr(QrMode::Reduced).unwrap();
    assert_eq!((data(q), data(r)), (data(s.eye(3).unwrap()), data(s.eye(3).unwrap().neg().unwrap())));
    // Columns of any size have the factors of ordinary ones, times that size.
    let sizes = [1e30f32, 1.0, 1e-30, 1e19].map(|x| f32::from_bits(x.to_bits() & 0x7f80_0000));
    let a = s.uniform_range(&[2, 40, 4], -2.0, 2.0).unwrap();
    let by = s.constant(&t(&[4], &sizes)).unwrap();
    let (q, r) = a.qr(QrMode::Reduced).unwrap();
    let (scaled_q, scaled_r) = a.mul(by).unwrap().qr(QrMode::Reduced).unwrap();
    assert_eq!((data(scaled_q), data(scaled_r)), (data(q), data(r.mul(by).unwrap())));
    let bad = s.constant(&t(&[2, 2], &[1.0, f32::INFINITY, 2.0, 1.0])).unwrap();
    let (q, r) = bad.qr(QrMode::Reduced).unwrap();
    assert!(data(q).iter().all(|x| x.is_finite()) && !data(r)[3].is_finite());
}

/// `Q` of two rows and columns is the direction of the first column: the second column has no gradients, also where the columns are
/// nearly parallel. The numbers are PyTorch's, in float64.
#[test]
fn gradients_of_square_orthogonal_factors_do_not_cancel() {
    let s = Session::eager(&device());
    let a = s.variable(&t(&[2, 2], &[1.0, 1.0, 1.0, 1.0 + f32::powi(0.5, 10)])).unwrap();
    let weights = s.constant(&t(&[2, 2], &[0.25, -0.75, 0.5, 1.0])).unwrap();
    let (q, _) = a.qr(QrMode::Reduced).unwrap();
    let first = s.grad(q.mul(weights).unwrap().sum().unwrap(), &[a]).unwrap()[0];
    let weights = s.constant(&t(&[2, 2], &[1.0, 0.5, -0.25, 0.75])).unwrap();
    let second = s.grad(first.mul(weights).unwrap().sum().unwrap(), &[a]).unwrap()[0];
    let wants = [[0.176_776_7, 0.0, -0.176_776_7, 0.0], [-0.397_747_56, 0.0, 0.176_776_7, 0.0]];
    for (got, want) in [first, second].into_iter().map(data).zip(wants) {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-5), "{got:?}, not {want:?}");
    }
}

/// Indices of a value.
fn numbered(v: Var<'_>) -> Vec<u32> {
    v.indices().unwrap().data().to_vec()
}

#[test]
fn factors_of_any_shape_make_the_matrix_again() {
    let device = device();
    let s = Session::eager(&device);
    for dims in [[2, 3, 5], [2, 5, 3], [1, 1, 4], [1, 4, 1], [2, 0, 3], [2, 3, 0]] {
        let a = s.uniform_range(&dims, -4.0, 4.0).unwrap();
        let [p, l, u] = a.lu().unwrap();
        let (packed, rows) = a.lu_factor().unwrap();
        for (x, y) in std::iter::zip(packed.lu_unpack(rows).unwrap(), [p, l, u]) {
            assert_eq!((x.shape().unwrap(), data(x)), (y.shape().unwrap(), data(y)));
        }
        let again = data(p.matmul(l).unwrap().matmul(u).unwrap());
        assert!(std::iter::zip(again, data(a)).all(|(x, y)| (x - y).abs() < 4e-6), "{dims:?}");
    }
    let square = s.uniform_range(&[3, 4, 4], -1.0, 1.0).unwrap();
    let b = s.uniform_range(&[3, 4, 2], -1.0, 1.0).unwrap();
    let (packed, rows) = square.lu_factor().unwrap();
    assert_eq!(data(b.lu_solve(packed, rows, true, false).unwrap()), data(square.solve(b).unwrap()));
}

/// The message of an error.
fn refused(outcome: Result<Var<'_>>) -> String {
    outcome.map(drop).unwrap_err().to_string()
}

#[test]
fn bad_input_is_refused_by_name() {
    let device = device();
    let s = Session::eager(&device);
    let [wide, vector, square] = [&[2, 3][..], &[3], &[3, 3]].map(|d| s.zeros(d).unwrap());
    let says = |outcome: Result<Var<'_>>, words: &[&str]| {
        let text = refused(outcome);
        assert!(words.iter().all(|w| text.contains(w)), "{text} does not have {words:?}");
    };
    says(wide.cholesky(false), &["cholesky", "[2, 3]", "square"]);
    says(vector.cholesky(false), &["cholesky", "at least 2"]);
    says(wide.inverse(), &["inverse", "square"]);
    says(wide.det(), &["det", "square"]);
    says(wide.slogdet().map(|x| x.0), &["slogdet", "square"]);
    says(wide.matrix_power(2), &["matrix_power", "square"]);
    says(square.solve(wide), &["solve", "[3, 3]", "[2, 3]"]);
    says(square.solve_triangular(wide, false, true, false), &["solve_triangular", "equations"]);
    says(wide.cholesky_solve(square, false), &["cholesky_solve", "equations"]);
    let (two, three) = (s.zeros(&[2, 3, 3]).unwrap(), s.zeros(&[3, 3, 1]).unwrap());
    says(two.solve(three), &["solve", "broadcast"]);
    says(square.cross(square, 2), &["cross", "axis 2"]);
    says(wide.cross(wide, 0), &["cross", "3 elements"]);
    says(wide.fft(None, 0, FftNorm::Backward), &["fft", "last axis of 2"]);
    let pairs = s.zeros(&[4, 2]).unwrap();
    says(pairs.fft(None, 1, FftNorm::Backward), &["fft", "axis 1"]);
    says(pairs.ifft(Some(0), 0, FftNorm::Backward), &["ifft", "0 points"]);
    says(pairs.fft2(None, [-2, -1], FftNorm::Backward), &["fftn", "before the first axis"]);
    says(pairs.fftn(Some(&[3, 4]), &[0], FftNorm::Backward), &["fftn", "2 sizes for 1 axes"]);
    says(pairs.ifftn(None, &[0, 0], FftNorm::Backward), &["ifftn", "axis 0 is named again"]);
    says(vector.rfftn(None, &[0; 0], FftNorm::Ortho), &["rfftn", "needs an axis"]);
    says(vector.conj(), &["conj", "last axis of 2"]);
    says(vector.rfft_with(None, 1, FftNorm::Ortho), &["rfft", "axis 1"]);
    says(vector.rfft2(None, [-2, -1], FftNorm::Ortho), &["rfftn", "before the first axis"]);
    says(vector.stft(Stft::new(8), None), &["stft", "reflected"]);
    says(vector.stft(Stft { center: false, ..Stft::new(8) }, None), &["stft", "fewer than a frame"]);
    says(vector.stft(Stft { hop: 0, ..Stft::new(2) }, None), &["stft", "above 0"]);
    says(vector.stft(Stft::new(2), Some(vector)), &["stft", "window", "[3]"]);
    says(
        vector.stft(Stft { win_length: Some(3), ..Stft::new(2) }, None),
        &["stft", "win_length", "use 1 to n_fft"],
    );
    says(vector.stft(Stft { win_length: Some(1), ..Stft::new(2) }, Some(vector)), &["stft", "window", "[3]"]);
    says(vector.householder_product(vector), &["householder_product", "at least 2"]);
    says(wide.householder_product(vector), &["householder_product", "at most as many as rows"]);
    says(wide.ormqr(wide, wide, true, false), &["ormqr", "tau"]);
    says(vector.qr(QrMode::Reduced).map(|x| x.0), &["qr", "at least 2"]);
    says(vector.geqrf().map(|x| x.0), &["geqrf", "at least 2"]);
    says(wide.lstsq(square), &["lstsq", "equations"]);
    says(wide.matrix_exp(), &["matrix_exp", "square"]);
    says(wide.tensorinv(1), &["tensorinv", "2 elements and the others 3"]);
    says(wide.tensorinv(3), &["tensorinv", "fewer"]);
    says(wide.tensorsolve(vector, &[0; 0]), &["tensorsolve", "[2, 3]", "[3]"]);
    says(wide.cond(MatrixNorm::Frobenius), &["inverse", "square"]);
    let order = |d: &[usize]| s.zeros(d).unwrap().to_index_below(1).unwrap();
    says(vector.lu_factor().map(|x| x.0), &["lu_factor", "at least 2"]);
    says(square.lu_unpack(order(&[2])).map(|x| x[0]), &["lu_unpack", "each row"]);
    says(square.lu_solve(wide, order(&[2]), true, false), &["lu_solve", "square"]);
    says(square.lu_solve(square, order(&[2]), true, false), &["lu_solve", "each row"]);
    says(wide.lu_solve(square, order(&[3]), true, false), &["lu_solve", "equations"]);
    says(s.zeros(&[4, 3, 2]).unwrap().istft(Stft::new(8), None, None), &["istft", "modes"]);
    says(pairs.istft(Stft::new(8), None, None), &["istft", "frames"]);
}
