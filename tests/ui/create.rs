//@ build
//~ zeros: the sizes of [?, 4] must all be known here
use dittograd::prelude::{Result, Session};
use dittograd::typed::Rows;

pub fn nothing(session: &Session) -> Result<Rows<'_, 4>> {
    Rows::zeros(session)
}
