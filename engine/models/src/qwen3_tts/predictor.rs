//! Weights of the code predictor: the depth transformer that draws the codes below the first.

use device::WeightId;

use super::config::Config;
use super::talker::UNSCALED;
use crate::ModelError;
use crate::blocks::{DepthWeights, LayerWeights};
use crate::weights::Loader;

/// `first_table` embeds the first code and is the backbone's own.
pub(crate) fn load(
    loader: &mut Loader<'_>,
    config: &Config,
    first_table: WeightId,
) -> Result<DepthWeights, ModelError> {
    let (predictor, outer) = (&config.predictor, config.talker.shape.hidden);
    let own = predictor.shape.hidden;
    // Checkpoints whose two widths agree hold no projection at all.
    let projection = if own == outer {
        None
    } else {
        let weight = loader.matrix("talker.code_predictor.small_to_mtp_projection.weight", own, outer)?;
        Some((weight, loader.vector("talker.code_predictor.small_to_mtp_projection.bias", own)?))
    };
    let layers = (0..predictor.layers)
        .map(|layer| {
            let prefix = format!("talker.code_predictor.model.layers.{layer}");
            LayerWeights::load(loader, &prefix, &predictor.shape, UNSCALED)
        })
        .collect::<Result<_, _>>()?;
    let norm = loader.vector("talker.code_predictor.model.norm.weight", own)?;
    let mut tables = vec![first_table];
    let mut heads = Vec::new();
    for below in 0..config.talker.groups - 1 {
        let table = format!("talker.code_predictor.model.codec_embedding.{below}.weight");
        tables.push(loader.table(&table, predictor.vocab, outer)?);
        heads.push(loader.matrix(
            &format!("talker.code_predictor.lm_head.{below}.weight"),
            predictor.vocab,
            own,
        )?);
    }
    Ok(DepthWeights { projection, layers, norm, heads, tables })
}
