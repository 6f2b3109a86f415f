use super::*;
use crate::dims;

#[test]
fn neighbouring_axes_are_one_pass_and_the_last_group_comes_first() {
    let shape = dims(&[2, 3, 4, 5]);
    assert_eq!(*passes(&shape, &[2, 3]), [Pass { outer: 6, rows: 20, inner: 1 }]);
    assert_eq!(*passes(&shape, &[0, 1]), [Pass { outer: 1, rows: 6, inner: 20 }]);
    let two = [Pass { outer: 24, rows: 5, inner: 1 }, Pass { outer: 2, rows: 3, inner: 4 }];
    assert_eq!(*passes(&shape, &[1, 3]), two);
    assert!(passes(&shape, &[]).is_empty());
}

#[test]
fn what_is_given_spreads_over_the_first_pass() {
    let shape = dims(&[2, 3, 4, 5, 6]);
    assert_eq!(Fold::spread_shapes(&shape, &[1, 3, 4]), (dims(&[2, 1, 4, 1, 1]), dims(&[2, 3, 4, 1, 1])));
    assert_eq!(Fold::spread_shapes(&shape, &[0, 2]), (dims(&[1, 3, 1, 5, 6]), dims(&[2, 3, 1, 5, 6])));
}
