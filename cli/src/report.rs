use crate::{Site, exit};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Job id
    job: u32,
}

pub(crate) fn run(_site: &Site, _args: &Args) -> anyhow::Result<u8> {
    Ok(exit::OK)
}
