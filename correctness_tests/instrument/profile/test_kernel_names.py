"""Names of kernels and operators as the libraries have them, and the class and back end that each is of."""

from __future__ import annotations

import pytest

from fixtures.profile.classes import backends_of, class_of, difference, plural, shown

pytestmark = pytest.mark.correctness
ALL_REDUCES = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "nccl",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "nccl",
    "ncclSymkDevKernel_AllReduce_AGxLL_sum_bf16(ncclSymkDevWorkArgs)": "sglang_nccl_symmetric",
    "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>(sglang::RankData*, int)": "sglang_custom_v1",
    "void all_reduce_1shot_push_kernel<__nv_bfloat16, 8u, true>(AllReducePushParams<8u>)": "sglang_custom_v2",
    "void flashinfer::pcie_ipc::ipc_rsag_ring_push_param_kernel<8>(P)": "sglang_pcie_ipc flashinfer_pcie_ipc",
    "void ipc_topo_rsag8_block_param_kernel<__nv_bfloat16>(P)": "sglang_pcie_ipc flashinfer_pcie_ipc",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(P)": "sglang_torch_symmetric",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16>(int)": "sglang_torch_symmetric",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(P)": "flashinfer_fusion",
    "void mscclpp::allreduce_LL_1node<__nv_bfloat16>(P)": "sglang_mscclpp",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>(P)": "sglang_quick",
    "gloo:all_reduce": "gloo sglang_coordinator",
    "sgl_kernel::shm_allreduce": "sglang_coordinator",
    "void one_shot_all_reduce_norm_kernel<__nv_bfloat16, 8>(AllReduceParams<__nv_bfloat16>)": "",
}
CLASSES = {
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "other collective",
    "ncclDevKernel_Reduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "other collective",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<void>>>(P)": "attention",
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(PosEncodingMode)0, 2u>(P)": "attention",
    "fmhaSm100aKernel_QkvBfloat16OBfloat16HQk576HV512PagedKvDenseStaticKvTokens8": "attention",
    "void flashinfer::MergeStatesKernel<8u, 16u, __nv_bfloat16>(P)": "attention",
    "fused_moe_kernel": "MoE",
    "void moe::dev::routing::routingDeepSeek::routingMainKernel<P>(P)": "MoE",
    "void biased_grouped_topk_kernel<__nv_bfloat16>(P)": "MoE",
    "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(P)": "norm",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)": "norm",
    "void flashinfer::sampling::TopPRenormProbKernel<1024u>(P)": "sampling",
    "void at::native::reduce_kernel<512, 1, ReduceOp<float, at::native::ArgMaxOps<float> > >(R)": "sampling",
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": "GEMM",
    "void deep_gemm::sm100_fp8_gemm_1d1d_impl<0u>(P)": "GEMM",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256": "GEMM",
    "Memcpy DtoD (Device -> Device)": "copy",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>(float*)": "copy",
    "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)": "other",
    "Memset (Device)": "other",
    "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16>(P)": "other",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, attention_params)": "other",
    "aten::linear": "GEMM",
    "aten::addmm": "GEMM",
    "sgl_kernel::weight_packed_linear": "GEMM",
    "sgl_kernel::decode_attention_cpu": "attention",
    "sgl_kernel::fused_add_rmsnorm_cpu": "norm",
    "sgl_kernel::fused_experts_cpu": "MoE",
    "aten::rsqrt": "norm",
    "aten::copy_": "copy",
    "aten::_to_copy": "copy",
    "aten::to": "other",
    "aten::as_strided": "other",
}


@pytest.mark.parametrize(("name", "backends"), ALL_REDUCES.items())
def test_an_all_reduce_is_known_and_tells_its_back_end(name, backends):
    assert class_of(name) == "all-reduce"
    assert set(backends_of(name)) == set(backends.split())


@pytest.mark.parametrize(("name", "kind"), CLASSES.items())
def test_a_name_tells_its_class(name, kind):
    assert class_of(name) == kind
    assert backends_of(name) == ()


def test_a_name_is_shown_without_result_and_parameters():
    assert shown("void (anonymous namespace)::kernel<(Mode)0, f(int)>(int, long)") == "kernel<(Mode)0, f(int)>"
    assert shown("Memcpy DtoD (Device -> Device)") == "Memcpy DtoD (Device -> Device)"
    assert shown("aten::mm") == "aten::mm"
    assert len(shown(f"k<{'x' * 500}>(int)")) == 120


def test_numbers_of_classes_and_names_read_as_words():
    assert [plural(count, "copy") for count in (0, 1, 2)] == ["0 copies", "1 copy", "2 copies"]
    assert [plural(count, "MoE", signed=True) for count in (1, -2)] == ["+1 MoE kernel", "-2 MoE kernels"]
    told = difference({"norm": 61, "other": 3}, {"copy": 61, "norm": 60, "other": 90})
    assert told == "+61 copies, -1 norm, +87 other"
    many = {f"kernel_{number:02}": 1 for number in range(12)}
    assert difference({}, many).endswith("+1 kernel_08 and 3 more names")
    assert difference(many, many) == ""
