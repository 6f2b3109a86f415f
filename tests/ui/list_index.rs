//@ check
//~ the list ends before that element
use dittograd::typed::{Matrix, TList, TListOf, Vector};

fn third<'s>(list: TListOf![Matrix<'s, 3, 4>, Vector<'s, 4>]) {
    let _ = list.get::<2>();
}
