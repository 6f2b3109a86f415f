use super::*;

/// Bytes of shared memory a block of an H200 can have.
const MOST_SHARED: usize = 227 * 1024;

fn of([batch, m, n, k]: [usize; 4], [ta, tb, aligned, has_bias]: [bool; 4], sm_count: u32) -> MatmulPlan {
    let p =
        Problem { gemm: Gemm { batch, m, n, k, ta, tb }, aligned, has_bias, shares_a: false, tensor: true };
    plan(&p, &Gpu { sm_count, shared: MOST_SHARED, numerics: Numerics::Strict, hopper: true })
}

fn define(plan: &MatmulPlan, name: &str) -> usize {
    let key = format!("#define DITTO_{name} ");
    plan.defines.lines().find_map(|line| line.strip_prefix(&key)).unwrap().parse().unwrap()
}

/// Rows and columns of the plan's tile, from the text the kernel is compiled with.
fn tile(plan: &MatmulPlan) -> (usize, usize) {
    (define(plan, "WM") * 8 * define(plan, "TM"), define(plan, "WN") * 4 * define(plan, "TN"))
}

/// What must hold for any plan.
fn check(batch: usize, m: usize, n: usize, k: usize, plan: &MatmulPlan) {
    let (rows, cols) = tile(plan);
    assert_eq!(plan.grid[0] as usize, m.div_ceil(rows) * n.div_ceil(cols), "{m} {n} {k}: the tiles cover it");
    assert!(plan.grid[0] <= i32::MAX as u32 && plan.grid[1] == 1 && plan.grid[2] <= 65535);
    assert_eq!(plan.grid[2] as usize, (batch * plan.parts).min(65535));
    assert_eq!(plan.block as usize, define(plan, "WM") * define(plan, "WN") * 32);
    assert!(plan.block <= 1024);
    if plan.parts == 1 {
        assert_eq!((plan.slice, plan.workspace, &plan.reduce), (k, 0, &None));
    } else {
        assert_eq!(plan.slice, CHUNK);
        assert_eq!(plan.parts, k.div_ceil(CHUNK));
        assert_eq!(plan.workspace, plan.parts * batch * m * n);
        let reduce = plan.reduce.as_ref().unwrap();
        assert!(reduce.grid[0] >= 1 && reduce.grid[0] <= i32::MAX as u32);
        assert_eq!(define(plan, "BIAS"), 0, "the bias is added once, after the parts");
    }
}

#[test]
fn plans_cover_the_problem() {
    let sizes = [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 64, 127, 128, 129, 500, 1000, 4096, 8192];
    for m in sizes {
        for n in sizes {
            for k in [1, 7, 128, 1023, 1024, 1025, 2049, 8192] {
                for batch in [1, 3, 70000] {
                    for sm_count in [0, 1, 108, 132] {
                        let plan = of([batch, m, n, k], [false, true, true, true], sm_count);
                        check(batch, m, n, k, &plan);
                    }
                }
            }
        }
    }
}

#[test]
fn huge_problems_stay_inside_the_limits() {
    for (batch, m, n, k) in [
        (1, 1 << 34, 1, 1),
        (1, 1, 1 << 34, 2),
        (1, 1, 1, 1 << 34),
        (1 << 31, 1, 1, 3000),
        (1 << 20, 64, 64, 64),
        (1, 1 << 17, 1 << 17, 1 << 17),
        (1, (1 << 31) + 5, 3, 7),
    ] {
        let plan = of([batch, m, n, k], [false, false, true, false], 132);
        check(batch, m, n, k, &plan);
        assert!(plan.workspace <= MAX_WORKSPACE);
        assert_eq!(define(&plan, "LONG"), usize::from(m.max(n).max(k) > i32::MAX as usize - 4096));
    }
    // Nothing overflows where nothing could ever run.
    of([usize::MAX, usize::MAX, usize::MAX, usize::MAX], [true, true, true, true], u32::MAX);
}

#[test]
fn wide_copies_only_where_the_axis_allows() {
    for t in &TILES {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            for aligned in [false, true] {
                for (m, n, k) in [(64, 64, 64), (63, 64, 64), (64, 63, 64), (64, 64, 63)] {
                    let p = Problem {
                        gemm: Gemm { batch: 1, m, n, k, ta, tb },
                        aligned,
                        has_bias: false,
                        shares_a: false,
                        tensor: true,
                    };
                    let plan = plan_tile(&p, t, k, false);
                    let a = if ta { m } else { k };
                    let b = if tb { k } else { n };
                    for (name, length) in [("VA", a), ("VB", b), ("VC", n)] {
                        assert!(define(&plan, name) == 0 || aligned && length % 4 == 0, "{name} {p:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn tensor_tiles_fit_the_kernel() {
    let sizes = [1, 3, 8, 17, 64, 129, 768, 8192];
    for t in &TENSOR_TILES {
        assert!(t.bk.is_multiple_of(16) && t.thread[0].is_multiple_of(2) && t.thread[1].is_multiple_of(2));
        assert!(t.rows().is_multiple_of(32) && t.cols().is_multiple_of(32), "rows meet all banks");
        assert!((t.rows() * t.bk).is_multiple_of(4 * t.threads()) && t.rows() * t.bk <= 32 * t.threads());
        assert!((t.cols() * t.bk).is_multiple_of(4 * t.threads()) && t.cols() * t.bk <= 32 * t.threads());
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            let p = Problem {
                gemm: Gemm { batch: 1, m: 9, n: 9, k: 9, ta, tb },
                aligned: true,
                has_bias: false,
                shares_a: false,
                tensor: true,
            };
            let plan = plan_tile(&p, t, 9, true);
            // With k contiguous in both as many fit as registers allow; other layouts take a little more.
            let blocks = if !ta && tb { t.blocks } else { t.blocks - 1 };
            assert!((plan.shared as usize + 1024) * blocks <= MOST_SHARED + 1024, "{t:?} {}", plan.shared);
        }
    }
    for m in sizes {
        for n in sizes {
            for k in [1, 31, 512, 1000, 8192, 100_000] {
                let p = Problem {
                    gemm: Gemm { batch: 2, m, n, k, ta: false, tb: true },
                    aligned: true,
                    has_bias: true,
                    shares_a: false,
                    tensor: true,
                };
                let gpu = Gpu { sm_count: 132, shared: MOST_SHARED, numerics: Numerics::Tf32, hopper: true };
                let plan = plan(&p, &gpu);
                assert_eq!(define(&plan, "TF32"), 1);
                assert_eq!(plan.parts, k.div_ceil(plan.slice), "no part is empty: {m} {n} {k} {plan:?}");
                assert!(plan.parts == 1 || plan.slice.is_multiple_of(4), "parts start where wide copies can");
                assert_eq!(plan.workspace, if plan.parts > 1 { plan.parts * 2 * m * n } else { 0 });
                assert_eq!(super::plan(&Problem { tensor: false, ..p }, &gpu).shared, 0);
            }
        }
    }
}

#[test]
fn tiles_fit_the_kernel() {
    for t in &TILES {
        assert!(t.blocks > 1 && t.full <= t.alone);
        assert!(CHUNK.is_multiple_of(t.bk) && t.bk.is_multiple_of(2 * t.group));
        // The widest layout of either operand, in bytes of static shared memory.
        let a = (t.bk * (t.rows() + 4)).max(t.rows() * (t.bk + 4));
        let b = (t.bk * (t.cols() + 4)).max(t.cols() * (t.bk + 4));
        let (a, b) = if t.group == 1 { (t.bk * (t.rows() + 4), t.bk * (t.cols() + 4)) } else { (a, b) };
        assert!(t.stages * (a + b) * 4 <= 48 * 1024, "{t:?}");
        // Every thread that copies has as much to do as any other, with 16-byte copies too: all of them, or three
        // quarters where lines have a factor of three.
        for rows in [t.rows(), t.cols()] {
            let copiers = if rows.is_multiple_of(3) { t.threads() / 4 * 3 } else { t.threads() };
            assert!((rows * t.bk).is_multiple_of(4 * copiers), "{t:?}");
        }
    }
}

#[test]
fn long_sums_of_small_results_are_split() {
    let plan = of([1, 64, 64, 8192], [true, false, true, true], 132);
    assert_eq!((plan.parts, plan.slice, plan.workspace), (8, 1024, 8 * 64 * 64));
    let reduce = plan.reduce.unwrap();
    assert!(reduce.defines.contains("DITTO_BIAS 1") && reduce.defines.contains("DITTO_REDUCE 1"));
}

#[test]
fn large_products_use_the_large_tile() {
    let plan = of([1, 4096, 4096, 4096], [false, false, true, false], 132);
    assert_eq!((tile(&plan), plan.parts), ((128, 128), 1));
    // Tiles that all run at once: 32 for each of 8 chunks.
    let plan = of([1, 768, 768, 8192], [true, false, true, false], 132);
    assert_eq!((tile(&plan), plan.parts), ((192, 96), 8));
    let plan = of([1, 8192, 50304, 768], [false, true, true, false], 132);
    assert_eq!((tile(&plan), plan.parts), ((128, 128), 1));
}
