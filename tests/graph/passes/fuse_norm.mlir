module {
  "giw.model"() {context = 64 : i64, family = "test", hidden = 8 : i64, n_layers = 1 : i64, vocab = 32 : i64} : () -> ()
  %0 = "giw.token_ids"() {label = "token_ids"} : () -> tensor<?xi32>
  %1 = "giw.param"() {name = "e.weight", parts = ["e.weight"], role = "embed", rows = array<i64: 32>} : () -> tensor<32x8xf32>
  %2 = "giw.embed"(%0, %1) {label = "e", scale = 1.000000e+00 : f64} : (tensor<?xi32>, tensor<32x8xf32>) -> tensor<?x8xf32>
  "giw.hidden"(%2) {index = 0 : i64, label = "hidden.0"} : (tensor<?x8xf32>) -> ()
  %3 = "giw.param"() {name = "n0.weight", parts = ["n0.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %4 = "giw.rms_norm"(%2, %3) {eps = 1.000000e-05 : f64, label = "n0", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %5 = "giw.param"() {name = "a.weight", parts = ["a.weight"], role = "attn_out", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %6 = "giw.linear"(%4, %5) {label = "a"} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %7 = "giw.add"(%2, %6) {label = "plain"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %8 = "giw.param"() {name = "n1.weight", parts = ["n1.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %9 = "giw.rms_norm"(%7, %8) {eps = 1.000000e-05 : f64, label = "n1", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %10 = "giw.param"() {name = "b.weight", parts = ["b.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %11 = "giw.linear"(%9, %10) {label = "b"} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %12 = "giw.param"() {name = "post.weight", parts = ["post.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %13 = "giw.rms_norm"(%11, %12) {eps = 9.9999999999999995E-7 : f64, label = "post", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %14 = "giw.add"(%7, %13) {label = "normed_branch"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %15 = "giw.param"() {name = "n2.weight", parts = ["n2.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %16 = "giw.rms_norm"(%14, %15) {eps = 1.000000e-05 : f64, label = "n2", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %17 = "giw.param"() {name = "n3.weight", parts = ["n3.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %18 = "giw.rms_norm"(%14, %17) {eps = 1.000000e-05 : f64, label = "n3", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %19 = "giw.add"(%16, %18) {label = "two_norms"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %20 = "giw.add"(%14, %19) {label = "last"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
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
  %3 = "giw.param"() {name = "n0.weight", parts = ["n0.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %4 = "giw.rms_norm"(%2, %3) {eps = 1.000000e-05 : f64, label = "n0", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %5 = "giw.param"() {name = "a.weight", parts = ["a.weight"], role = "attn_out", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %6 = "giw.linear"(%4, %5) {label = "a"} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %7 = "giw.param"() {name = "n1.weight", parts = ["n1.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %8:2 = "giw.add_norm"(%2, %6, %7) {eps = 1.000000e-05 : f64, label = "n1", post_eps = 1.000000e-05 : f64} : (tensor<?x8xf32>, tensor<?x8xf32>, tensor<8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  %9 = "giw.param"() {name = "b.weight", parts = ["b.weight"], role = "mlp_down", rows = array<i64: 8>} : () -> tensor<8x8xf32>
  %10 = "giw.linear"(%8#1, %9) {label = "b"} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %11 = "giw.param"() {name = "post.weight", parts = ["post.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %12 = "giw.rms_norm"(%10, %11) {eps = 9.9999999999999995E-7 : f64, label = "post", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %13 = "giw.param"() {name = "n2.weight", parts = ["n2.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %14:2 = "giw.add_norm"(%8#0, %10, %13, %11) {eps = 1.000000e-05 : f64, label = "n2", post_eps = 9.9999999999999995E-7 : f64} : (tensor<?x8xf32>, tensor<?x8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  %15 = "giw.param"() {name = "n3.weight", parts = ["n3.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %16 = "giw.rms_norm"(%14#0, %15) {eps = 1.000000e-05 : f64, label = "n3", size = 8 : i64} : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %17 = "giw.add"(%14#1, %16) {label = "two_norms"} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  %18 = "giw.param"() {name = "out.weight", parts = ["out.weight"], role = "norm", rows = array<i64: 8>} : () -> tensor<8xf32>
  %19:2 = "giw.add_norm"(%14#0, %17, %18) {eps = 1.000000e-05 : f64, label = "out", post_eps = 1.000000e-05 : f64} : (tensor<?x8xf32>, tensor<?x8xf32>, tensor<8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  "giw.hidden"(%19#0) {index = 1 : i64, label = "hidden.1"} : (tensor<?x8xf32>) -> ()
  "giw.hidden"(%19#1) {index = 2 : i64, label = "hidden.2"} : (tensor<?x8xf32>) -> ()
  %20 = "giw.lm_head"(%19#1, %1) {label = "lm_head", scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64} : (tensor<?x8xf32>, tensor<32x8xf32>) -> tensor<?x32xf32>
  "giw.output"(%20) {label = "output"} : (tensor<?x32xf32>) -> ()
}
