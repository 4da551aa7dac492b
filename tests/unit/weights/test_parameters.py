"""Values of parameters that are quantised."""

import torch

from nemo_brorl.weights.parameters import fill, plain


def test_the_first_values_of_an_fp8_parameter_are_kept_for_the_master_weights() -> None:
    # As Transformer Engine's parameters have it.
    param = torch.nn.Parameter(torch.zeros(2))
    param.get_high_precision_init_val = lambda: param._high_precision_init_val
    fill(param, torch.tensor([1.0, 2.0]))
    assert param.get_high_precision_init_val().tolist() == plain(param).tolist() == [1.0, 2.0]
