"""English and Chinese: the texts of the pages. English is written where it is shown; this file has the Chinese.

Messages of headgate itself (problems of a rulebook, errors) are English in both, as on the command line.
"""

# ruff: noqa: RUF001 (Chinese has punctuation of its own)
from __future__ import annotations

import re
from typing import Final

ENGLISH: Final = "en"
CHINESE: Final = "zh"
LANGUAGES: Final = (ENGLISH, CHINESE)

IN_CHINESE: Final = {
    "Enforce it in stages": "分阶段执行",
    "Each stage for": "每阶段时长",
    "Roll back above": "超过则回滚",
    "Start with 1 %": "从 1 % 开始",
    "Stop, and roll back": "停止并回滚",
    "of its enforced calls refused": "的已执行调用被拒绝",
    "It is enforced for 1, 10, 50 and 100 % of its keys. A stage that refuses too much is rolled back.": (
        "依次对 1、10、50、100 % 的键执行。某一阶段拒绝过多时会自动回滚。"
    ),
    "No service runs that could watch over the stages: start headgate serve.": (
        "没有运行中的服务可以监视各阶段：请启动 headgate serve。"
    ),
    "{state}: {why}": "{state}：{why}",
    "rolled back": "已回滚",
    "done": "已完成",
    "stopped": "已停止",
    "(version {n} again)": "（重新发布版本 {n}）",
    ", a sample of {share} of all calls: it refuses less than all would": (
        "，是全部调用的 {share} 抽样：实际拒绝会更多"
    ),
    "1 day": "1 天",
    "1 hour": "1 小时",
    "1 minute": "1 分钟",
    "A key of this rule": "此规则的键",
    "A limit of its own": "单独的限额",
    "A note, for the history": "说明，写入历史",
    "After": "之后",
    "All rules, the last minute": "全部规则，最近一分钟",
    "Audit": "审计",
    "Before": "之前",
    "Block": "封禁",
    "Calls": "调用",
    "Calls per second": "每秒调用",
    "Calls what": "调用内容",
    "Candidate": "候选",
    "Changes of this key": "此键的变更",
    "Decides the recent calls by the rules in force and by these, and shows what differs. Nothing is published.": (
        "用现行规则和编辑后的规则分别判定最近的调用，并显示差异。不会发布任何内容。"
    ),
    "Delayed": "延迟",
    "Exempt": "豁免",
    "Filter rules": "筛选规则",
    "Find": "查找",
    "Find a person, a rule or a key": "查找人员、规则或键",
    "From {source}: change it there. Here you can check and preview a change.": (
        "来自 {source}：请在那里修改。这里可以检查和预览。"
    ),
    "History": "历史",
    "Hot and most refused keys of the last minute": "最近一分钟最热和被拒最多的键",
    "How long": "多久",
    "Is it safe to enforce? The last {hours} hours": "可以强制执行吗？最近 {hours} 小时",
    "Its next call": "下一次调用",
    "Its own limit": "单独限额",
    "Its text": "全文",
    "Key": "键",
    "Keys": "键",
    "Keys with a limit of their own": "有单独限额的键",
    "Kind": "类型",
    "Last minute": "最近一分钟",
    "Light or dark": "浅色或深色",
    "Log in": "登录",
    "Log out": "退出",
    "Look at it": "查看",
    "Name": "名称",
    "No key called in the last minute.": "最近一分钟没有调用。",
    "No key has a limit of its own.": "没有键有单独限额。",
    "No version is kept here.": "这里不保存版本。",
    "Nobody has changed it lately.": "最近没有变更。",
    "Nothing was changed yet.": "还没有任何变更。",
    "Now": "现在",
    "Offered": "请求",
    "Override": "设定限额",
    "Or a log, up to 8 MB": "或上传日志，最多 8 MB",
    "Overview": "概览",
    "Pages": "页面",
    "Passed": "通过",
    "Passes again in": "再次通过需等",
    "Preview": "预览",
    "Problems": "问题",
    "Publish": "发布",
    "Publish version {n}": "发布版本 {n}",
    "Redis answers in": "Redis 响应",
    "Refused": "拒绝",
    "Refused by rule": "各规则拒绝",
    "Refused since": "被拒始于",
    "Refused: live beside shadow and candidate": "拒绝：现行与影子、候选对比",
    "Redis does not answer. This page shows what this process knows, and nothing can be changed now.": (
        "Redis 没有响应。本页显示此进程已知的内容，现在无法更改任何内容。"
    ),
    "Remaining": "剩余",
    "Remove its own limit": "取消单独限额",
    "Replay recent calls": "重放最近调用",
    "Reset counters": "清零计数",
    "Roll back to it": "回滚到此",
    "Rule": "规则",
    "Rulebook": "规则集",
    "Rules": "规则",
    "Say why, for those who read the audit trail.": "请写明原因，供审计查看。",
    "Services, gateways and programs": "服务、网关和程序",
    "Shadow": "影子",
    "Show": "查看",
    "Show all {n} rules": "显示全部 {n} 条规则",
    "Skip to the content": "跳到正文",
    "Span": "时段",
    "State": "状态",
    "The rulebook ({format})": "规则集（{format}）",
    "The service prints its admin token when it starts, unless one was set.": (
        "服务启动时会打印管理令牌，除非已自行设定。"
    ),
    "The whole book": "整个规则集",
    "There are no recent calls to replay.": "没有可重放的最近调用。",
    "This change is not kept any more.": "此变更已不再保存。",
    "This did not work": "操作未成功",
    "This rule is not in the rulebook any more.": "此规则已不在规则集中。",
    "This rule takes no overrides: write “overrides: true” in it to exempt or block keys.": (
        "此规则不接受单独限额：写入 “overrides: true” 后才能豁免或封禁键。"
    ),
    "This token is not valid.": "令牌无效。",
    "Time": "时间",
    "Token": "令牌",
    "Tools": "工具",
    "Trial": "试行",
    "Trials would refuse": "试行会拒绝",
    "Undo": "撤销",
    "Version": "版本",
    "Version {n}": "版本 {n}",
    "Version {n}, by {author}": "版本 {n}，{author} 发布",
    "Watch what limits do, and change them.": "观察限流，并随时调整。",
    "What": "内容",
    "What it changed": "改动内容",
    "What it changes": "将会改动",
    "What you can do": "可以做什么",
    "When": "时间",
    "Who, from where": "谁，从哪里",
    "Why": "原因",
    "Why?": "原因？",
    "Why? This is for those who read the audit trail": "原因？供审计查看",
    "Write a note: why do you change the rules?": "请写说明：为什么修改规则？",
    "You may look, and not change anything.": "您只能查看，不能修改。",
    "Your name, for the audit trail": "您的名字，写入审计",
    "Nothing was published. Your text is kept below: publish it again when Redis answers.": (
        "没有发布任何内容。您的文本保留在下方：Redis 恢复后请再次发布。"
    ),
    "Whether it was published is unknown: Redis got it, and gave no reply. Your text is kept below. "
    "Open Rules again, in another tab, when Redis answers: it says there what became of it.": (
        "是否已发布未知：请求已发给 Redis，但没有响应。您的文本保留在下方。"
        "Redis 恢复后，请在另一标签页打开“规则”，那里会显示结果。"
    ),
    "Your publication that got no reply was made: it is version {n}.": "之前没有响应的发布已成功：版本 {n}。",
    "Your publication that got no reply has not been made. Version {n} is in force.": (
        "之前没有响应的发布尚未成功。现行版本是 {n}。"
    ),
    "Your text is kept below. This is what changed since version {base}; take over what you want, and publish "
    "again: it will then follow version {newer}.": (
        "您的文本保留在下方。这是版本 {base} 之后的改动；采纳需要的部分后再次发布，将接在版本 {newer} 之后。"
    ),
    "added": "新增",
    "all other rules": "其他规则",
    "and {n} more lines": "还有 {n} 行",
    "by": "来自",
    "candidate": "候选",
    "changed": "修改",
    "checking": "检查中",
    "edited": "编辑后",
    "enforced for {share} %": "对 {share} % 执行",
    "for a day": "一天",
    "for an hour": "一小时",
    "in force": "生效中",
    "is refused": "被拒绝",
    "key charged again": "重新计数",
    "key reset": "清零计数",
    "live": "实时",
    "longer than {span}": "超过 {span}",
    "newly passed": "新通过",
    "newly refused": "新拒绝",
    "nginx": "nginx",
    "no": "否",
    "no connection": "连接中断",
    "no rule applies": "无规则适用",
    "none": "无",
    "not enough data": "数据不足",
    "nothing": "无",
    "off": "关闭",
    "operator": "操作员",
    "override set": "设定限额",
    "override unset": "取消限额",
    "passed": "通过",
    "passes": "通过",
    "problems": "个问题",
    "program": "程序",
    "refused": "拒绝",
    "refused of": "被拒，共",
    "removed": "删除",
    "renamed": "改名",
    "replaying": "重放中",
    "rules published": "发布规则",
    "rules rolled back": "回滚规则",
    "safe to enforce: {answer}": "可强制执行：{answer}",
    "service": "服务",
    "shadow": "影子",
    "silent for {span}": "静默 {span}",
    "units refunded": "退还额度",
    "undone": "已撤销",
    "unsaved": "未发布",
    "until it is undone": "直到撤销",
    "valid": "有效",
    "viewer": "查看者",
    "works": "正常",
    "yes": "是",
    "{n} keys": "{n} 个键",
    "{n} older changes": "更早的 {n} 条变更",
    "{n} rules": "{n} 条规则",
    "It saw {n} calls of {span}": "重放了 {span} 内的 {n} 次调用",
}


def translate(language: str, text: str) -> str:
    """Returns a text in a language; in English if there is no other.

    >>> translate("zh", "Rules"), translate("zh", "as it is")
    ('规则', 'as it is')
    """
    return IN_CHINESE.get(text, text) if language == CHINESE else text


def choose_language(wanted: str | None, accepted: str | None) -> str:
    """Returns the language that the user has chosen, or that the browser asks for first.

    >>> choose_language(None, "zh-CN,zh;q=0.9,en;q=0.8"), choose_language("en", "zh"), choose_language(None, None)
    ('zh', 'en', 'en')
    """
    if wanted in LANGUAGES:
        return wanted
    weights: list[tuple[float, str]] = []
    for part in (accepted or "")[:500].split(","):
        tag, _, weight = part.strip().partition(";")
        language = tag.partition("-")[0].lower()
        if language in LANGUAGES:
            match = re.fullmatch(r"\s*q=([01](?:\.\d{1,3})?)\s*", weight)
            weights.append((float(match[1]) if match else 1.0, language))
    return max(weights, key=lambda each: each[0])[1] if weights else ENGLISH
