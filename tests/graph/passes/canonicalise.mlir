module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.scale"(%2) {factor = 1.000000e+00 : f64, label = "one"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %4 = "giw.scale"(%3) {factor = 5.000000e-01 : f64, label = "half"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %5 = "giw.softcap"(%4) {cap = 0.000000e+00 : f64, label = "off"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %6 = "giw.softcap"(%5) {cap = 3.000000e+01 : f64, label = "on"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %7 = "giw.slice"(%6) {label = "whole", size = 8 : i64, start = 0 : i64} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %8 = "giw.slice"(%7) {label = "part", size = 4 : i64, start = 0 : i64} : (tensor<?x8xf32>) -> tensor<?x4xf32>
  %9 = "giw.slice"(%7) {label = "rest", size = 4 : i64, start = 4 : i64} : (tensor<?x8xf32>) -> tensor<?x4xf32>
  %10 = "giw.add"(%8, %9) {label = "sum"} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %11 = "giw.param"() {name = "up.weight", parts = ["up.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x4xf32>
  %12 = "giw.linear"(%10, %11) {label = "up"} : (tensor<?x4xf32>, tensor<8x4xf32>) -> tensor<?x8xf32>
  %13 = "giw.add"(%7, %12) {label = "residual"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%13) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %14 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %15 = "giw.rms_norm"(%13, %14) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%15) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %16 = "giw.lm_head"(%15, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%16) {label = "output"} : (tensor<?x32xf32>) -> ()
}
// ---- after ----
module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.scale"(%2) {factor = 5.000000e-01 : f64, label = "half"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %4 = "giw.softcap"(%3) {cap = 3.000000e+01 : f64, label = "on"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %5 = "giw.slice"(%4) {label = "part", size = 4 : i64, start = 0 : i64} : (tensor<?x8xf32>) -> tensor<?x4xf32>
  %6 = "giw.slice"(%4) {label = "rest", size = 4 : i64, start = 4 : i64} : (tensor<?x8xf32>) -> tensor<?x4xf32>
  %7 = "giw.add"(%5, %6) {label = "sum"} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %8 = "giw.param"() {name = "up.weight", parts = ["up.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x4xf32>
  %9 = "giw.linear"(%7, %8) {label = "up"} : (tensor<?x4xf32>, tensor<8x4xf32>) -> tensor<?x8xf32>
  %10 = "giw.add"(%4, %9) {label = "residual"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%10) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  %11 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %12 = "giw.rms_norm"(%10, %11) {eps = 1.000000e-05 : f64, label = "out", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%12) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %13 = "giw.lm_head"(%12, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%13) {label = "output"} : (tensor<?x32xf32>) -> ()
}
