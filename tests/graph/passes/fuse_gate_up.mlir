module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "blk.0.ffn_gate.weight", parts = ["blk.0.ffn_gate.weight"], role = "mlp_gate_up", rows = array<i64: 12>} : () -> tensor<12x8xf32>
  %4 = "giw.linear"(%2, %3) {label = "blk.0.ffn_gate"} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x12xf32>
  %5 = "giw.param"() {name = "blk.0.ffn_up.weight", parts = ["blk.0.ffn_up.weight"], role = "mlp_gate_up", rows = array<i64: 12>} : () -> tensor<12x8xf32>
  %6 = "giw.linear"(%2, %5) {label = "blk.0.ffn_up"} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x12xf32>
  %7 = "giw.act"(%4) {fn = "silu", label = "blk.0.ffn_act"} : (tensor<?x12xf32>) -> tensor<?x12xf32>
  %8 = "giw.mul"(%7, %6) {label = "blk.0.ffn_gated"} : (tensor<?x12xf32>, tensor<?x12xf32>) -> tensor<?x12xf32>
  %9 = "giw.param"() {name = "blk.0.ffn_down.weight", parts = ["blk.0.ffn_down.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x12xf32>
  %10 = "giw.linear"(%8, %9) {label = "blk.0.ffn_down"} : (tensor<?x12xf32>, tensor<8x12xf32>) -> tensor<?x8xf32>
  %11 = "giw.add"(%2, %10) {label = "r0"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %12 = "giw.param"() {name = "blk.1.ffn_up.weight", parts = ["blk.1.ffn_up.weight"], role = "mlp_gate_up", rows = array<i64: 12>} : () -> tensor<12x8xf32>
  %13 = "giw.linear"(%11, %12) {label = "blk.1.ffn_up"} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x12xf32>
  %14 = "giw.param"() {name = "blk.1.ffn_gate.weight", parts = ["blk.1.ffn_gate.weight"], role = "mlp_gate_up", rows = array<i64: 12>} : () -> tensor<12x8xf32>
  %15 = "giw.linear"(%11, %14) {label = "blk.1.ffn_gate"} : (tensor<?x8xf32>, tensor<12x8xf32>) -> tensor<?x12xf32>
  %16 = "giw.act"(%15) {fn = "silu", label = "blk.1.ffn_act"} : (tensor<?x12xf32>) -> tensor<?x12xf32>
  %17 = "giw.mul"(%16, %13) {label = "blk.1.ffn_gated"} : (tensor<?x12xf32>, tensor<?x12xf32>) -> tensor<?x12xf32>
  %18 = "giw.param"() {name = "blk.1.ffn_down.weight", parts = ["blk.1.ffn_down.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x12xf32>
  %19 = "giw.linear"(%17, %18) {label = "blk.1.ffn_down"} : (tensor<?x12xf32>, tensor<8x12xf32>) -> tensor<?x8xf32>
  %20 = "giw.add"(%11, %19) {label = "r1"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%20) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %21 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %22 = "giw.rms_norm"(%20, %21) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%22) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %23 = "giw.lm_head"(%22, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%23) {label = "output"} : (tensor<?x32xf32>) -> ()
}
// ---- after ----
module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "blk.0.ffn_gate.weight", parts = ["blk.0.ffn_gate.weight"], role = "mlp_gate_up", rows = array<i64: 12>} : () -> tensor<12x8xf32>
  %4 = "giw.param"() {name = "blk.0.ffn_gate_up.weight", parts = ["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"], role = "mlp_gate_up", rows = array<i64: 12, 12>} : () -> tensor<24x8xf32>
  %5 = "giw.linear"(%2, %4) {label = "blk.0.ffn_gate_up"} : (tensor<?x8xf32>, tensor<24x8xf32>) -> tensor<?x24xf32>
  %6 = "giw.slice"(%5) {label = "blk.0.ffn_gate", size = 12 : i64, start = 0 : i64} : (tensor<?x24xf32>) -> tensor<?x12xf32>
  %7 = "giw.param"() {name = "blk.0.ffn_up.weight", parts = ["blk.0.ffn_up.weight"], role = "mlp_gate_up", rows = array<i64: 12>} : () -> tensor<12x8xf32>
  %8 = "giw.slice"(%5) {label = "blk.0.ffn_up", size = 12 : i64, start = 12 : i64} : (tensor<?x24xf32>) -> tensor<?x12xf32>
  %9 = "giw.act"(%6) {fn = "silu", label = "blk.0.ffn_act"} : (tensor<?x12xf32>) -> tensor<?x12xf32>
  %10 = "giw.gate_act"(%5) {fn = "silu", label = "blk.0.ffn_gated", size = 12 : i64} : (tensor<?x24xf32>) -> tensor<?x12xf32>
  %11 = "giw.param"() {name = "blk.0.ffn_down.weight", parts = ["blk.0.ffn_down.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x12xf32>
  %12 = "giw.linear"(%10, %11) {label = "blk.0.ffn_down"} : (tensor<?x12xf32>, tensor<8x12xf32>) -> tensor<?x8xf32>
  %13 = "giw.add"(%2, %12) {label = "r0"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %14 = "giw.param"() {name = "blk.1.ffn_up.weight", parts = ["blk.1.ffn_up.weight"], role = "mlp_gate_up", rows = array<i64: 12>} : () -> tensor<12x8xf32>
  %15 = "giw.param"() {name = "blk.1.ffn_gate_up.weight", parts = ["blk.1.ffn_up.weight", "blk.1.ffn_gate.weight"], role = "mlp_gate_up", rows = array<i64: 12, 12>} : () -> tensor<24x8xf32>
  %16 = "giw.linear"(%13, %15) {label = "blk.1.ffn_gate_up"} : (tensor<?x8xf32>, tensor<24x8xf32>) -> tensor<?x24xf32>
  %17 = "giw.slice"(%16) {label = "blk.1.ffn_up", size = 12 : i64, start = 0 : i64} : (tensor<?x24xf32>) -> tensor<?x12xf32>
  %18 = "giw.param"() {name = "blk.1.ffn_gate.weight", parts = ["blk.1.ffn_gate.weight"], role = "mlp_gate_up", rows = array<i64: 12>} : () -> tensor<12x8xf32>
  %19 = "giw.slice"(%16) {label = "blk.1.ffn_gate", size = 12 : i64, start = 12 : i64} : (tensor<?x24xf32>) -> tensor<?x12xf32>
  %20 = "giw.act"(%19) {fn = "silu", label = "blk.1.ffn_act"} : (tensor<?x12xf32>) -> tensor<?x12xf32>
  %21 = "giw.mul"(%20, %17) {label = "blk.1.ffn_gated"} : (tensor<?x12xf32>, tensor<?x12xf32>) -> tensor<?x12xf32>
  %22 = "giw.param"() {name = "blk.1.ffn_down.weight", parts = ["blk.1.ffn_down.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x12xf32>
  %23 = "giw.linear"(%21, %22) {label = "blk.1.ffn_down"} : (tensor<?x12xf32>, tensor<8x12xf32>) -> tensor<?x8xf32>
  %24 = "giw.add"(%13, %23) {label = "r1"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%24) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %25 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %26 = "giw.rms_norm"(%24, %25) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%26) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %27 = "giw.lm_head"(%26, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%27) {label = "output"} : (tensor<?x32xf32>) -> ()
}
