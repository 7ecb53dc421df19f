#include "attention/policies/all.h"

namespace kinora {

// Each is described in a file of its own. They are listed here because the objects of a static
// library that nobody names are not linked.
AttentionPolicy a_shape_policy();
AttentionPolicy dense_policy();
AttentionPolicy grid_policy();
AttentionPolicy mean_pool_policy();
AttentionPolicy mminference_policy();
AttentionPolicy momo_policy();
AttentionPolicy oracle_policy();
AttentionPolicy sf_fixed_policy();
AttentionPolicy sf_strided_policy();
AttentionPolicy tri_shape_policy();
AttentionPolicy vertical_slash_policy();

const std::vector<AttentionPolicy>& attention_policies() {
  static const std::vector<AttentionPolicy> policies = {
      dense_policy(),      mminference_policy(), momo_policy(),           grid_policy(),
      a_shape_policy(),    tri_shape_policy(),   vertical_slash_policy(), sf_fixed_policy(),
      sf_strided_policy(), mean_pool_policy(),   oracle_policy(),
  };
  return policies;
}

}  // namespace kinora
