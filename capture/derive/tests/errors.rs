//! What a user reads who derives `Tree` for what cannot be one.

#[test]
fn wrong_uses_are_reported_at_their_place() {
    trybuild::TestCases::new().compile_fail("tests/errors/*.rs");
}
