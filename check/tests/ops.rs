//! One test per op and property, made from the list of ops: `softmax::gradient` and so on. Tests that need
//! a GPU say so and pass where there is none.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use dittograd_check::{self as check, Outcome, all_cpus, gpu};
use dittograd_device::Device;
use dittograd_device::cpu::simd::Simd;
use dittograd_numerics::rng::Stream;
use dittograd_ops::{AnyOp, with_ops};

/// Prints what was run, so that `--nocapture` gives a table.
fn expect(outcome: Outcome) {
    match outcome {
        Ok(report) => println!("{report}"),
        Err(failure) => panic!("{failure}"),
    }
}

/// A CPU of the test's own: some properties look at the memory counters or make allocations fail.
fn cpu() -> Device {
    Device::cpu_with(3, Simd::best()).unwrap()
}

macro_rules! table {
    ($($name:ident: $module:ident::$op:ident,)*) => {
        /// The names as the list spells them.
        const LISTED: &[&str] = &[$(stringify!($name)),*];

        $(mod $name {
            use super::*;
            const NAME: &str = stringify!($name);

            #[test]
            fn forward() {
                expect(check::forward(NAME, &cpu()));
            }

            #[test]
            fn gradient() {
                expect(check::gradient(NAME));
            }

            #[test]
            fn second() {
                expect(check::second(NAME));
            }

            #[test]
            fn device_gradient() {
                expect(check::device_gradient(NAME, &cpu()));
            }

            #[test]
            fn adjoint() {
                expect(check::adjoint(NAME, &cpu()));
            }

            #[test]
            fn special() {
                for device in all_cpus().unwrap() {
                    expect(check::special(NAME, device));
                }
            }

            #[test]
            fn rejects() {
                expect(check::rejects(NAME));
            }

            #[test]
            fn bits() {
                expect(check::bits(NAME, all_cpus().unwrap()));
            }

            #[test]
            fn compiled() {
                expect(check::compiled(NAME, &cpu()));
            }

            #[test]
            fn faults() {
                expect(check::faults(NAME, &cpu()));
            }

            #[test]
            fn guards() {
                expect(check::guards(NAME, &cpu()));
            }

            #[test]
            fn repeat() {
                expect(check::repeat(NAME, &cpu(), 20));
            }

            #[test]
            fn cuda_forward() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::forward(NAME, &gpu));
                }
            }

            #[test]
            fn cuda_device_gradient() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::device_gradient(NAME, &gpu));
                }
            }

            #[test]
            fn cuda_adjoint() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::adjoint(NAME, &gpu));
                }
            }

            #[test]
            fn cuda_special() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::special(NAME, &gpu));
                }
            }

            #[test]
            fn cuda_bits() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::bits(NAME, &[cpu(), gpu]));
                }
            }

            #[test]
            fn cuda_compiled() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::compiled(NAME, &gpu));
                }
            }

            #[test]
            fn cuda_faults() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::faults(NAME, &gpu));
                }
            }

            #[test]
            fn cuda_guards() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::guards(NAME, &gpu));
                }
            }

            #[test]
            fn cuda_repeat() {
                if let Some((_turn, gpu)) = gpu() {
                    expect(check::repeat(NAME, &gpu, 20));
                }
            }
        })*
    };
}
with_ops!(table);

#[test]
fn names_are_distinct_and_those_of_the_list() {
    assert_eq!(LISTED, AnyOp::NAMES);
    let distinct: std::collections::BTreeSet<&&str> = LISTED.iter().collect();
    assert_eq!(distinct.len(), LISTED.len());
}

#[test]
fn the_cases_of_an_op_are_of_that_op() {
    for name in AnyOp::NAMES {
        let mut stream = Stream::new(1, 0);
        let samples = AnyOp::samples(name).into_iter().chain(AnyOp::random(name, &mut stream)).map(|s| s.op);
        let rejects = AnyOp::rejects(name).into_iter().map(|r| r.op);
        let names: Vec<&str> = samples.chain(rejects).map(|op| op.name()).collect();
        assert!(names.len() > 1 && names.iter().all(|n| n == name), "{name}: {names:?}");
    }
}

#[test]
fn the_table_has_a_row_per_op_property_and_device() {
    let mut rows = Vec::new();
    let failed = check::run_all(&[cpu()], "relu::", |row| rows.push(row.to_string())).unwrap();
    assert_eq!((failed, rows.len()), (0, check::Property::ALL.len()), "{rows:#?}");
    assert!(check::forward("no such op", &cpu()).is_err());
}
